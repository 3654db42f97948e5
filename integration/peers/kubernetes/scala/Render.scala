package org.apache.spark.deploy.k8s

import scala.jdk.CollectionConverters._

import io.fabric8.kubernetes.api.model.{Pod, PodBuilder}
import io.fabric8.kubernetes.client.{ConfigBuilder, KubernetesClient, KubernetesClientBuilder}
import io.fabric8.kubernetes.client.utils.Serialization

import org.apache.spark.{SecurityManager, SparkConf}
import org.apache.spark.deploy.k8s.submit.{KubernetesDriverBuilder, PythonMainAppResource}
import org.apache.spark.resource.ResourceProfile
import org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder
import org.apache.spark.util.Utils

/** Prints three pods as Spark makes them, as JSON, a line each: the driver and an executor in
  * cluster mode, and an executor in client mode. Its arguments are a file of settings and the job's
  * script. */
object Render {
  def main(arguments: Array[String]): Unit = {
    val conf = new SparkConf(false)
    Utils.getPropertiesFromFile(arguments(0)).foreach {
      case (name, value) => conf.set(name, value)
    }
    conf.set("spark.kubernetes.submitInDriver", "true")
    val address = new ConfigBuilder().withMasterUrl("https://127.0.0.1:1").build()
    val client = new KubernetesClientBuilder().withConfig(address).build()
    val id = "spark-render"
    val driverConf = KubernetesConf.createDriverConf(conf, id, PythonMainAppResource(arguments(1)),
      "org.apache.spark.deploy.PythonRunner", Array.empty[String], None)
    val driver = new KubernetesDriverBuilder().buildFromFeatures(driverConf, client)
    show(driver.pod)
    // The submission writes these into the properties that the driver starts with.
    val running = conf.clone()
    driver.systemProperties.foreach { case (name, value) => running.set(name, value) }
    // In the driver's pod the template lies elsewhere.
    conf.getOption(Template).foreach(running.set(Template, _))
    executor(running, id, client)
    executor(conf.clone().set("spark.driver.host", "driver.example"), id, client)
    client.close()
  }

  private val Template = "spark.kubernetes.executor.podTemplateFile"

  private def executor(conf: SparkConf, id: String, client: KubernetesClient): Unit = {
    ResourceProfile.clearDefaultProfile()
    val profile = ResourceProfile.getOrCreateDefaultProfile(conf)
    val executorConf = KubernetesConf.createExecutorConf(conf, "1", id, None, profile.id)
    show(new KubernetesExecutorBuilder()
      .buildFromFeatures(executorConf, new SecurityManager(conf), client, profile).pod)
  }

  private def show(made: SparkPod): Unit = {
    val others = made.pod.getSpec.getContainers.asScala.filter(_.getName != made.container.getName)
    val pod: Pod = new PodBuilder(made.pod).editOrNewSpec()
      .withContainers((others :+ made.container).asJava).endSpec().build()
    println(Serialization.asJson(pod).linesIterator.map(_.trim).mkString)
  }
}
