// As much of a browser as the pages need that draw no chart.
class Node {
  constructor(tag) {
    Object.assign(this, { tag, childNodes: [], attributes: {}, dataset: {}, hidden: false, parent: null });
  }

  append(...added) {
    for (const one of added) {
      const node = one instanceof Node ? one : Object.assign(new Node("#text"), { text: String(one) });
      node.parent?.childNodes.splice(node.parent.childNodes.indexOf(node), 1);
      node.parent = this;
      this.childNodes.push(node);
    }
  }

  replaceChildren(...added) {
    for (const node of this.childNodes) node.parent = null;
    this.childNodes = [];
    this.append(...added);
  }

  get textContent() {
    return this.hidden ? "" : this.text ?? this.childNodes.map((node) => node.textContent).join("\n");
  }

  set textContent(text) { this.replaceChildren(text); }

  contains(other) { return other === this || this.childNodes.some((node) => node.contains(other)); }

  setAttribute(name, value) { this.attributes[name] = value; }

  getAttribute(name) { return this.attributes[name] ?? null; }

  addEventListener() {}

  getContext() { return { fillRect() {} }; }
}

const body = new Node("body");
Object.assign(globalThis, {
  document: { body, activeElement: body, documentElement: body, createElement: (tag) => new Node(tag) },
  getComputedStyle: () => ({ getPropertyValue: () => "" }),
  matchMedia: () => ({ addEventListener() {} }),
  addEventListener() {},
});
