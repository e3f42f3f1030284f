// Elements of the page. Invariant: every text becomes a text node or an attribute, never markup.

/** A new element. `attributes`: `class`, `on…` listeners, properties of `style` by name, other attributes; null: none. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child);
  }
}

/** Replace all children. */
export function fill(element, ...children) {
  const wanted = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  element.replaceChildren(...wanted);
}

/** Set the text only where it differs, so that an unchanged element costs nothing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute only where it differs; null: remove it. */
export function setAttribute(element, name, value) {
  if (value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
}

/** A name that is cut in its middle where there is no room: its end tells pods apart. */
export function nameElement(name, tag = "span", attributes = {}) {
  const end = name.length > 16 ? 8 : 0;
  // Its two parts would be read as two words.
  const label = attributes.role || tag !== "span" ? name : null;
  return h(
    tag,
    { ...attributes, "aria-label": label, class: `name ${attributes.class ?? ""}`, title: name },
    h("span", { class: "name-start" }, name.slice(0, name.length - end)),
    end ? h("span", { class: "name-end" }, name.slice(-end)) : null,
  );
}

/** A command with a button that copies it. */
export function commandElement(command) {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy: ${command}` }, "Copy");
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    copy(command, button);
  });
  return h("span", { class: "command" }, h("code", {}, command), button);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // Without permission, or over plain HTTP from another host: select it, so that one key copies it.
    const range = document.createRange();
    range.selectNodeContents(button.previousElementSibling);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

/** A remedy, `what it does: command; or another: command`; each command of kubectl, gracectl or helm can be copied. */
export function remedyElement(remedy) {
  const parts = remedy.split("; or ").map((part, index) => {
    const found = /^(.*?): ((?:kubectl|gracectl|helm) .*)$/s.exec(part);
    const lead = index ? " or " : "→ ";
    return found ? h("span", {}, lead, `${found[1]}: `, commandElement(found[2])) : h("span", {}, lead, part);
  });
  return h("p", { class: "remedy" }, ...parts);
}

/** A link to another page; only http and https. */
export function link(url, text) {
  if (!/^https?:\/\//i.test(url)) return h("span", { class: "faint" }, text);
  return h("a", { href: url, target: "_blank", rel: "noreferrer noopener" }, text);
}
