// Elements described as values, and a document brought up to date with them, so that what did not change is not touched:
// focus, selection and scrolling stay. Every text is set as text, without characters that reorder or hide it.

const SVG = "http://www.w3.org/2000/svg";
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** The text without control characters and without characters that reorder text or have no width. */
export const clean = (text) => String(text).replace(UNSEEN, "");

/** An element: h("td", {class: "number", key: 1}, "12", child, [more]). Nothing, false and null are left out. */
export function h(tag, props, ...children) {
  return { tag, props: props || {}, children: flat(children, []) };
}

function flat(items, into) {
  for (const item of items) {
    if (Array.isArray(item)) flat(item, into);
    else if (item !== null && item !== undefined && item !== false && item !== true) {
      into.push(item.props ? item : clean(typeof item === "object" ? JSON.stringify(item) : item));
    }
  }
  return into;
}

/** Make what is in the element the same as `items`. */
export function show(parent, ...items) {
  update(parent, flat(items, []), parent.namespaceURI === SVG);
}

function update(parent, items, svg) {
  const keyed = new Map();
  const others = [];
  for (const node of parent.childNodes) {
    if (node.fairlogKey !== undefined) keyed.set(node.fairlogKey, node);
    else others.push(node);
  }
  let next = 0;
  let cursor = parent.firstChild;
  const kept = new Set();
  for (const item of items) {
    let node = null;
    const key = typeof item === "string" ? undefined : item.props.key;
    if (key !== undefined) {
      node = keyed.get(String(key)) || null;
      keyed.delete(String(key));
    } else if (next < others.length) node = others[next++];
    if (node === null || !fits(node, item)) node = made(item, svg);
    kept.add(node);
    if (node === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(node, cursor);
    if (typeof item === "string") {
      if (node.data !== item) node.data = item;
    } else refresh(node, item);
  }
  for (const node of [...parent.childNodes]) if (!kept.has(node)) node.remove();
}

function fits(node, item) {
  if (typeof item === "string") return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === item.tag;
}

function made(item, svg) {
  if (typeof item === "string") return document.createTextNode(item);
  const node = svg || item.tag === "svg" ? document.createElementNS(SVG, item.tag) : document.createElement(item.tag);
  if (item.props.key !== undefined) node.fairlogKey = String(item.props.key);
  return node;
}

function refresh(node, item) {
  const before = node.fairlogProps || {};
  for (const name of Object.keys(before)) if (!(name in item.props)) set(node, name, null, before[name]);
  for (const [name, value] of Object.entries(item.props)) {
    if (before[name] !== value) set(node, name, value, before[name]);
  }
  node.fairlogProps = item.props;
  if (item.props.own) return; // what is in it is somebody else's
  update(node, item.children, node.namespaceURI === SVG && item.tag !== "foreignObject");
  if (item.tag === "select" && "value" in item.props && document.activeElement !== node) node.value = item.props.value;
}

function set(node, name, value, before) {
  if (name === "key" || name === "own") return;
  if (name.startsWith("on")) {
    node[name] = value;
  } else if (name === "style") {
    for (const part of Object.keys(before || {})) if (!value || !(part in value)) node.style.removeProperty(part);
    for (const [part, text] of Object.entries(value || {})) node.style.setProperty(part, text);
  } else if (name === "value") {
    if (document.activeElement !== node || node.value === "") node.value = value ?? "";
  } else if (name === "checked" || name === "disabled" || name === "open" || name === "selected") {
    node[name] = Boolean(value);
  } else if (value === null || value === undefined || value === false) {
    node.removeAttribute(name);
  } else node.setAttribute(name, value === true ? "" : clean(value));
}
