# Everything lives in .venv and build/ of this folder; the paths below are relative, so the folder's own name may hold spaces.
.DEFAULT_GOAL := help
.PHONY: help build test test-all deep shapes previous wheel demo lint format-scala bench bench-s3
.PHONY: bench-python bench-serve bench-lookup bench-ui bench-small bench-stores bench-balance bench-standby bench-latency bench-latency-flink bench-nexmark bench-nexmark-flink soak bench-disk bench-large
.PHONY: chains simulate simulate-mutants peers peer-azurite peer-browser peer-delta peer-files peer-gcs peer-hdfs peer-kafka
.PHONY: peer-kubernetes peer-minio peer-network peer-prometheus peer-radosgw peer-runtimes
.PHONY: peer-seaweedfs peer-spark
.PHONY: peer-yarn docs clean
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# The interpreter to build .venv with: the first that Spark 4.3 accepts.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
PY := .venv/bin/python
INSTALLED := .venv/.installed
# What a JVM of the tests would load one by one: integration/class_archive.py.
CLASSES := build/classes.jsa
# What a Python worker of Spark would compile at each start: integration/worker_bytecode.py.
BYTECODE := .venv/.bytecode
PREPARED := $(CLASSES) $(BYTECODE)
# make test TEST=tests/unit TEST_ARGS='-k lineage -x'
TEST ?=
TEST_ARGS ?=
# On this many processes, file by file in pytest's order: the unit tests, short ones, come last
# and fill up. With as many as cores, a quarter of the processors' time is left: tests wait for JVMs
# and for batches.
WORKERS ?= 3
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# The minor version of Spark before the newest that Millpond supports: unpacked beside .venv, whose
# other packages serve it too.
PREVIOUS := 4.2
PREVIOUS_SPARK := build/spark/$(PREVIOUS)
PREVIOUS_VENV := build/venv-spark$(PREVIOUS)
PREVIOUS_PY := $(PREVIOUS_VENV)/bin/python
# What is run with it: the store machine in short, an operator of each kind, transformWithState, types that are new, state readers, a crash.
PREVIOUS_TESTS := integration/test_joins.py integration/test_operators.py integration/test_every_type.py \
    integration/test_checkpoint_format.py integration/test_readers.py integration/test_crash.py \
    integration/test_store_machine.py integration/test_real_time.py \
    integration/test_python_transport.py
PREVIOUS_SAMPLE ?= (asks_for and 3) or spark_4_2 or join-full-v3 or row-processing-time or checkpoint_format or scala-event-time-avro or of_the_agent \
    or (Millpond and format2-prefix and not heap) or (change_feed and format2) or 1-geometry or 1-variant or 1-varchar or 1-time \
    or (every_shape and (row-initial-state or pandas-initial-state)) or (every_type and row-unsaferow and all-sides)
# make bench SCALE=0.1: a tenth of the rows
SCALE ?= 1
# make bench-s3 BENCH_ARGS='--slots 8'
BENCH_ARGS ?=
# make bench-serve SERVE_ARGS='--query-cores 2 --server-cores 3'
SERVE_ARGS ?=
# make bench-ui UI_ARGS='--query-cores 2 --server-cores 3'
UI_ARGS ?=
# make bench-lookup LOOKUP_ARGS='--work-dir /mnt/disk'
LOOKUP_ARGS ?=
# make bench-latency LATENCY_ARGS='--short --seconds 60 --trigger 10'
LATENCY_ARGS ?=
# make bench-stores STORES_ARGS='--stores 100'
STORES_ARGS ?=
# make bench-disk DISK_ARGS='--quick'
DISK_ARGS ?=
# make bench-large LARGE_ARGS='--keys 1000000 --minutes 2'
LARGE_ARGS ?=
# make bench-nexmark SCALE=0.1 NEXMARK_ARGS='--queries q18,q20'
NEXMARK_ARGS ?=
# make soak MINUTES=5
MINUTES ?= 30
# make chains CHAINS=500 FIRST=1
CHAINS ?= 20
# make peer-spark SUITES="StreamingAggregationSuite": some of Spark's suites; SAMPLE=1: a short sample
SUITES ?=
SAMPLE ?=
# make simulate SEEDS=20000 FIRST=1
SEEDS ?= 300
FIRST ?= 1
# make simulate SIMULATE_ARGS=--trace: all that happens
SIMULATE_ARGS ?=

# What pyproject.toml asks for, one a line: to build, to run, and for every extra.
REQUIREMENTS := import tomllib; read = tomllib.load(open("pyproject.toml", "rb")); project = read["project"]; \
    extras = [line for extra in project["optional-dependencies"].values() for line in extra if not line.startswith("millpond[")]; \
    print(*read["build-system"]["requires"], *project["dependencies"], *extras, sep="\n")

# What `make docs` needs is apart from .venv: the group `docs` of pyproject.toml.
DOCS_VENV := build/venv-docs
DOCS_REQUIREMENTS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["docs"], sep="\n")

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONPATH :=
# Agents, commands and workers are short processes, and most of their start would go into compiling.
unexport PYTHONDONTWRITEBYTECODE

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

build: $(INSTALLED) ## make .venv with millpond and everything that the other targets need; incremental
	@$(PY) jvm-shim/build_shim.py

# pyspark weighs 450 MB: what the build needs goes into .venv once, instead of into pip's throw-away build environment too. The
# requirements go first and by themselves: some are sdists that need an isolated build, which millpond's own must not have.
$(INSTALLED): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "millpond: no Python 3.11 or newer on the path (Spark 4.3 needs it); say make PYTHON=..." >&2; exit 1; fi
	@command -v java >/dev/null || [ -x "$${JAVA_HOME:-}/bin/java" ] || { echo "millpond: no java on the path (Spark 4.3 needs Java 17 or newer)" >&2; exit 1; }
	@[ -x $(PY) ] && $(PY) -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear .venv || { rm -rf .venv; echo "millpond: $(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PY) -c '$(REQUIREMENTS)' > .venv/requirements.txt
	$(PY) -m pip install --quiet -r .venv/requirements.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(INSTALLED)

$(CLASSES): $(INSTALLED)
	@$(MAKE) --no-print-directory build
	@mkdir -p build
	@$(PY) -m integration.class_archive > build/classes.log 2>&1 \
	    || echo "millpond: no archive of Spark's classes, the tests take longer; build/classes.log says why" >&2

$(BYTECODE): $(INSTALLED)
	@$(PY) -m integration.worker_bytecode
	@touch $@

test: build $(PREPARED) ## all tests but the deep ones: ten minutes (TEST=path TEST_ARGS=... for some)
	$(PY) -m pytest $(if $(TEST),"$(TEST)",-m "not deep" $(SPREAD)) $(TEST_ARGS)

test-all: build ## what make test leaves out: make previous, make deep
	@# Both speak before any of them fails the target.
	@failed=0; \
	    for part in previous deep; do $(MAKE) --no-print-directory $$part || failed=1; done; \
	    exit $$failed

deep: build $(PREPARED) ## the tests that are long, or much like another
	$(PY) -m pytest -m deep $(SPREAD) $(TEST_ARGS)

shapes: build ## compare all query shapes with Spark's RocksDB store (make test: a dozen of them)
	$(PY) -m pytest integration/test_operators.py $(TEST_ARGS)

previous: build $(PREVIOUS_VENV)/.installed ## run a sample of the tests with the previous minor version of Spark
	@$(PREVIOUS_PY) jvm-shim/build_shim.py
	$(PREVIOUS_PY) -m pytest $(PREVIOUS_TESTS) -k '$(PREVIOUS_SAMPLE)' $(SPREAD) $(TEST_ARGS)

wheel: build $(PREVIOUS_VENV)/.installed ## build dist/millpond-*.whl with a jar for every supported Spark
	@$(PREVIOUS_PY) jvm-shim/build_shim.py
	$(PY) -m hatchling build -t wheel -d dist

$(PREVIOUS_SPARK)/pyspark/version.py: | $(INSTALLED)
	$(PY) jvm-shim/fetch_spark.py $(PREVIOUS) $(PREVIOUS_SPARK)

# pyspark comes first on the path, all else from .venv.
$(PREVIOUS_VENV)/.installed: $(INSTALLED) $(PREVIOUS_SPARK)/pyspark/version.py
	@"$(PYTHON)" -m venv --clear --without-pip $(PREVIOUS_VENV)
	@$(PREVIOUS_PY) -c 'import sysconfig as c; print(c.get_path("purelib"))' > $(PREVIOUS_VENV)/site
	@$(PY) -c 'import sys, sysconfig as c; sys.stdout.write(sys.argv[1] + "\nimport site; site.addsitedir(" + repr(c.get_path("purelib")) + ")\n")' \
	    "$(CURDIR)/$(PREVIOUS_SPARK)" > "$$(cat $(PREVIOUS_VENV)/site)/millpond-spark.pth"
	@$(PREVIOUS_PY) -m integration.worker_bytecode
	@touch $@

demo: build ## replay a year of flights through Millpond, kill -9 included, and compare every row
	$(PY) -m integration.demo.run

lint: build ## ruff, mypy --strict, which room imports which; scalac's warnings are errors in the build itself
	@# All four speak before any of them fails the target.
	@failed=0; for tool in "ruff check ." "ruff format --check ." mypy lint-imports; do echo "$$tool"; .venv/bin/$$tool || failed=1; done; exit $$failed

# This and the peers are all that Maven Central is needed for; tests/unit/test_scala_texts.py needs nothing.
format-scala: ## scalafmt over all Scala; needs mvn, and Maven Central the first time
	@mkdir -p build/scalafmt
	@command -v mvn >/dev/null || { echo "millpond: make format-scala needs mvn, which fetches scalafmt; on Debian: apt-get install maven" >&2; exit 1; }
	@mvn -q -B -f jvm-shim/scalafmt/pom.xml dependency:build-classpath \
	    -Dmdep.outputFile="$(CURDIR)/build/scalafmt/classpath" > build/scalafmt/log 2>&1 \
	    || { echo "millpond: Maven Central is out of reach, and ~/.m2 has no scalafmt; build/scalafmt/log says more" >&2; exit 1; }
	@java -cp "$$(cat build/scalafmt/classpath)" org.scalafmt.cli.Cli --config .scalafmt.conf \
	    --non-interactive --quiet jvm-shim/src benchmarks

bench: build ## compare with Spark's own state stores (SCALE=0.1 for a quick look)
	$(PY) benchmarks/run.py --scale $(SCALE)

bench-python: build ## the same of Python's transformWithState alone: five minutes (SCALE=0.1 for a quick look)
	$(PY) benchmarks/run.py --only python --repetitions 1 --scale $(SCALE)

bench-s3: build ## measure batches, requests and restores on a slow S3 server, then by s3a (BENCH_ARGS='--only restore')
	$(PY) benchmarks/bench_s3.py $(BENCH_ARGS)
	@# The real s3a needs MinIO and Maven Central. Without them it says so, and the rest stands.
	@if $(PY) -m integration.peers.minio; then $(PY) benchmarks/bench_s3.py --s3a $(BENCH_ARGS); fi

bench-lookup: build ## measure cold and warm look-ups of a key, on a local disk and on S3
	$(PY) benchmarks/bench_lookup.py $(LOOKUP_ARGS)

bench-serve: build ## measure look-ups over HTTP beside a running query (SERVE_ARGS='--rounds 2')
	$(PY) benchmarks/bench_serve.py $(SERVE_ARGS)

bench-ui: build ## measure what a page costs a running query (UI_ARGS='--rounds 2')
	$(PY) benchmarks/bench_ui.py $(UI_ARGS)

bench-balance: build ## measure a cluster that grows from one executor to four, and loses one: eight minutes
	$(PY) benchmarks/bench_balance.py

bench-standby: build ## measure the first batch after a host is lost, with ten million keys on it: ten minutes
	$(PY) benchmarks/bench_standby.py

bench-small: build ## split the time of a micro-batch of 100 rows, beside Spark's stores: five minutes
	$(PY) benchmarks/bench_small.py

bench-stores: build ## measure 2,000 small stores in one executor, beside Spark's RocksDB store: fifteen minutes
	$(PY) benchmarks/bench_stores.py $(STORES_ARGS)

bench-disk: build ## measure a store of eight times its memory, beside Spark's RocksDB store: ten minutes
	$(PY) benchmarks/bench_disk.py $(DISK_ARGS)

bench-large: build ## measure a query with 50 million keys for half an hour, beside Spark's RocksDB store: two hours
	$(PY) benchmarks/bench_large.py $(LARGE_ARGS)

# Kafka needs Maven Central the first time. Without it this says so, and the rest is measured.
bench-latency: build ## measure latency in real-time mode, beside Spark's store: nine hours (LATENCY_ARGS='--quick')
	@$(PY) -m integration.peers.kafka || true
	$(PY) benchmarks/bench_latency.py $(LATENCY_ARGS)

bench-latency-flink: build ## the same with Flink beside them; the first time it needs mvn, PyPI and Maven Central
	@$(PY) -m integration.peers.kafka || true
	@$(PY) -m benchmarks.bench_flink
	$(PY) benchmarks/bench_latency.py --contenders millpond,rocksdb-changelog,flink $(LATENCY_ARGS)

bench-nexmark: build ## measure the queries of Nexmark that keep state: two hours (SCALE=0.1 for a quick look)
	$(PY) benchmarks/bench_nexmark.py --scale $(SCALE) $(NEXMARK_ARGS)

bench-nexmark-flink: build ## the same with Flink beside them; the first time it needs mvn, PyPI and Maven Central
	@$(PY) -m benchmarks.bench_flink
	$(PY) benchmarks/bench_nexmark.py --scale $(SCALE) --contenders millpond,rocksdb-changelog,hdfs,flink-rocksdb,flink-heap $(NEXMARK_ARGS)

soak: build ## kill and pause processes of a cluster at random for MINUTES, compare every row, measure what grows
	$(PY) -m integration.soak.run --minutes $(MINUTES)

chains: build ## play CHAINS random chains of commands over real queries, from FIRST on
	MILLPOND_CHAINS=$(CHAINS) MILLPOND_FIRST=$(FIRST) $(PY) -m pytest integration/test_chains.py $(TEST_ARGS)

# Each fetches its peer by name, or says in one line what it lacks. Its tests are in a folder of its name.
define peer
@$(PY) -m integration.peers.$(@:peer-%=%)
$(PY) -m pytest integration/peers/$(@:peer-%=%) -m peer --peer $(@:peer-%=%) $(TEST_ARGS)
endef

# These are fetched in a minute or two. `.ci/run` runs their samples. Of the others, go compiles some
# for minutes, and Delta needs the previous Spark.
SAMPLED := azurite browser files gcs hdfs kafka kubernetes prometheus runtimes spark
peers: build ## run a sample of the peers' tests: ten minutes; leaves out what its registry does not give
	$(PY) -m integration.peers.sample $(SAMPLED)

peer-azurite: build ## run queries with their checkpoints on Azurite; needs npm, mvn, and their registries the first time
	$(peer)

peer-files: build ## run queries with their checkpoints on ext4 and tmpfs; needs nothing else
	$(peer)

peer-gcs: build ## run queries with their checkpoints on an emulator of Google Cloud Storage; needs go, mvn, and their registries the first time
	$(peer)

peer-hdfs: build ## run queries with their checkpoints on HDFS; needs mvn, and Maven Central the first time
	$(peer)

peer-kafka: build ## run queries against a Kafka broker; needs mvn, and Maven Central the first time
	$(peer)

peer-kubernetes: build ## let Spark make the pods of the documented settings, and check them; needs nothing else
	$(peer)

peer-minio: build ## run queries with their state on MinIO, and their checkpoints there by s3a; needs go, mvn, and their registries the first time
	$(peer)

peer-network: build ## cut hosts of a cluster off from each other and from the storage; needs root, on Linux
	$(peer)

peer-prometheus: build ## let a Prometheus scrape a job by the files of conf/; needs prometheus, or apt-get the first time
	$(peer)

peer-radosgw: build ## run queries with their state on Ceph's S3 gateway; needs apt-get, and Debian's packages the first time
	$(peer)

peer-runtimes: build ## run a sample with Java 21 and 25, Python 3.12 and 3.13; needs PyPI the first time
	$(peer)

peer-seaweedfs: build ## run queries with their state on SeaweedFS; needs go, and its module proxy the first time
	$(peer)

peer-yarn: build ## run queries on YARN; needs mvn, PyPI, and Maven Central the first time
	$(peer)

peer-browser: build ## look at the pages of millpond ui in Chromium; needs apt-get and PyPI the first time
	$(peer)

# Delta Lake has jars for this version of Spark, and for no newer one.
peer-delta: build $(PREVIOUS_VENV)/.installed ## run queries whose sink is a Delta table, with Spark 4.2; needs mvn, and Maven Central the first time
	@$(PY) -m integration.peers.delta
	@$(PREVIOUS_PY) jvm-shim/build_shim.py
	$(PREVIOUS_PY) -m pytest integration/peers/delta -m peer --peer delta $(TEST_ARGS)

# Both versions of Spark run the tests that pom.xml of the peer names.
peer-spark: build $(PREVIOUS_VENV)/.installed ## run Spark's own tests on Millpond (SUITES="Name ..." for some); needs mvn, takes hours
	@$(PY) -m integration.peers.spark
	@$(PREVIOUS_PY) jvm-shim/build_shim.py
	@# Both speak before any of them fails the target.
	@failed=0; \
	    for python in $(PREVIOUS_PY) $(PY); do \
	        MILLPOND_SUITES="$(SUITES)" $$python -m pytest integration/peers/spark -m "$(if $(SAMPLE),peer and sample,peer)" $(TEST_ARGS) || failed=1; \
	    done; \
	    exit $$failed

simulate: build ## run SEEDS seeds of the simulation, from FIRST on (SIMULATE_ARGS=--trace for all that happens)
	$(PY) -m integration.simulation --first $(FIRST) --seeds $(SEEDS) $(SIMULATE_ARGS)

simulate-mutants: build ## put defects into copies of the sources and count the seeds until each is found
	$(PY) -m integration.simulation.mutants $(SIMULATE_ARGS)

docs: $(DOCS_VENV)/.installed ## build the docs as a site in build/site; every link and anchor is checked
	@$(PYTHON) docs/stage.py
	$(DOCS_VENV)/bin/zensical build --strict --clean
	@echo "read it: $(PYTHON) -m http.server --bind 127.0.0.1 --directory build/site"

$(DOCS_VENV)/.installed: pyproject.toml
	@"$(PYTHON)" -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -c '$(DOCS_REQUIREMENTS)' > $(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/python -m pip install --quiet -r $(DOCS_VENV)/requirements.txt
	@touch $@

clean: ## remove .venv and everything that was built
	rm -rf .venv build dist artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	rm -rf python/src/millpond/jars
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
