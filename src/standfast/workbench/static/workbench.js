// What htmx does not provide: keyboard shortcuts, relative times, scrolling, early submits, uploads,
// connection status.
(() => {
  "use strict";
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const typing = (element) => element.matches("input, textarea, select, [contenteditable]");

  // Keyboard shortcuts

  const actions = {
    "?": () => find("#keys").showModal(),
    "/": () => find("[data-search]")?.focus(),
    c: () => find("#message")?.focus(),
    j: () => step(1),
    k: () => step(-1),
    a: () => inView("[data-approve]")?.focus(),
    d: () => inView("[data-deny]")?.focus(),
    n: () => find("main a[rel=next]")?.click(),
    p: () => find("main a[rel=prev]")?.click(),
    v: nextView,
  };
  let going = false; // after g, the next key names a view

  function nextView() {
    const views = [...(all("main nav.views").at(-1)?.querySelectorAll("a") ?? [])];
    const at = views.findIndex((view) => view.ariaCurrent === "page");
    views[(at + 1) % views.length]?.click();
  }

  function step(by) {
    const rows = all("main :is([data-row], details.call > summary)").filter((row) => row.checkVisibility());
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))]?.focus();
  }

  function inView(selector) {
    const found = all(selector);
    const near = document.activeElement.closest(".request");
    return (near && find(selector, near)) ?? found.find((one) => one.getBoundingClientRect().top >= 0) ?? found[0];
  }

  document.addEventListener("keydown", (event) => {
    const field = typing(event.target);
    if (event.key === "Escape" && field) return event.target.blur();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && field) return event.target.form?.requestSubmit();
    if (field || event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
    if (event.key === "g") return void (going = true);
    if (going) {
      going = false;
      const link = find(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) return link.click();
    }
    if (Object.hasOwn(actions, event.key)) {
      event.preventDefault();
      actions[event.key]();
    }
  });

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open]");
    if (opener) document.getElementById(opener.dataset.open)?.showModal();
    if (event.target.matches("dialog, [data-close]")) event.target.closest("dialog").close();
    if (event.target.closest("[data-dismiss]")) find("#toasts").replaceChildren();
  });

  // Relative times

  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const relative = (seconds, before, after) => {
    const unit = units.find(([, size]) => seconds >= size);
    return unit ? `${before}${Math.floor(seconds / unit[1])} ${unit[0]}${after}` : "now";
  };
  setInterval(() => {
    for (const time of all("time[data-ago], time[data-due]")) {
      const passed = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const isDue = "due" in time.dataset;
      const text = isDue ? relative(-passed, "in ", "") : relative(passed, "", time.dataset.ago);
      if (isDue) time.classList.toggle("soon", passed > -3600);
      if (time.textContent !== text) time.textContent = text;
    }
  }, 5000);

  // Keep the end of a conversation in view if it already is

  let atEnd = true;
  const root = document.documentElement;
  const isAtEnd = () => root.scrollHeight - root.clientHeight - window.scrollY < 120;
  addEventListener("scroll", () => (atEnd = isAtEnd()), { passive: true });
  const follow = () => find("[data-follow]") && atEnd && window.scrollTo(0, root.scrollHeight);
  document.addEventListener("htmx:after:sse:message", follow);
  const toEnd = () => find("[data-follow]") && !location.hash && window.scrollTo(0, root.scrollHeight);
  toEnd(); // before htmx looks whether the mark that loads earlier turns is in view
  addEventListener("load", toEnd); // images have their heights now

  // When earlier turns are prepended, keep the visible ones in place

  let height = 0;
  document.addEventListener("htmx:before:swap", (event) => {
    height = event.target.closest?.("[data-earlier]") ? root.scrollHeight - window.scrollY : 0;
  });
  document.addEventListener("htmx:after:swap", () => {
    if (height) window.scrollTo(0, root.scrollHeight - height);
    height = 0;
  });

  // Connection status

  document.addEventListener("htmx:sse:error", () => root.classList.add("offline"));
  document.addEventListener("htmx:after:sse:connection", () => root.classList.remove("offline"));
  document.addEventListener("htmx:error", (event) => {
    if (event.detail.ctx?.request?.method === "POST") root.classList.add("offline");
  });

  // A form that an update has just inserted may be submitted before htmx has seen it

  document.addEventListener("submit", ({ target }) => {
    if (target.matches("[hx-post]") && !target._htmx) htmx.process(target);
  }, true);

  // Clear a form once it was sent, but keep text typed since; keep everything if sending failed.
  // An error message stays until the same element, or a form or button used by a person, succeeds.

  const sent = new WeakMap();
  let failed = null;
  document.addEventListener("htmx:before:request", (event) => {
    const form = event.detail.ctx.sourceElement;
    if (form.matches("form[data-reset]")) sent.set(form, { text: find("textarea", form).value, files: all("#uploads .chip") });
  });
  document.addEventListener("htmx:after:request", (event) => {
    const { ctx } = event.detail;
    if (ctx.response.status >= 400) failed = ctx.sourceElement;
    else if (ctx.sourceElement === failed || ctx.sourceElement.matches("form, button")) find("#toasts").replaceChildren();
    if (ctx.response.status < 400 && ctx.sourceElement.matches("form[data-reset]")) {
      const { text, files } = sent.get(ctx.sourceElement) ?? { files: [] };
      if (find("textarea", ctx.sourceElement).value === text) ctx.sourceElement.reset();
      for (const file of files) file.remove();
    }
  });

  // Uploads: send each file when it is chosen; the message refers to it by digest

  document.addEventListener("change", async (event) => {
    if (!event.target.matches("input[type=file]")) return;
    for (const file of event.target.files) {
      const answer = await fetch(`/v1/attachments?name=${encodeURIComponent(file.name)}`, {
        method: "POST",
        headers: { "Standfast-Request": "1", "Content-Type": file.type || "application/octet-stream" },
        body: file,
      });
      const made = await answer.json();
      const chip = document.createElement("span");
      chip.className = "chip";
      chip.textContent = answer.ok ? file.name : `${file.name}: ${made.detail}`;
      if (answer.ok) {
        const named = document.createElement("input");
        Object.assign(named, { type: "hidden", name: "attachment", value: made.digest });
        chip.append(named);
      }
      find("#uploads").append(chip);
    }
    event.target.value = "";
  });
})();
