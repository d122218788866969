(function () {
  "use strict";
  var root = document.documentElement;
  function byId(name) { return document.getElementById(name); }
  function all(query) { return Array.prototype.slice.call(document.querySelectorAll(query)); }

  byId("language").addEventListener("click", function () {
    root.lang = root.lang === "zh" ? "en" : "zh";
    all("option[data-en]").forEach(function (item) { item.textContent = item.getAttribute("data-" + root.lang); });
    all("input[data-en]").forEach(function (item) {
      item.placeholder = item.getAttribute("data-" + root.lang);
      item.setAttribute("aria-label", item.placeholder);
    });
  });

  byId("theme").addEventListener("click", function () {
    var dark = root.getAttribute("data-theme") || (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.setAttribute("data-theme", dark === "dark" ? "light" : "dark");
  });

  byId("print").addEventListener("click", function () { window.print(); });
  window.addEventListener("beforeprint", function () {
    all("details:not([open])").forEach(function (item) { item.open = true; item.setAttribute("data-closed", ""); });
  });
  window.addEventListener("afterprint", function () {
    all("details[data-closed]").forEach(function (item) { item.open = false; item.removeAttribute("data-closed"); });
  });

  function copyBySelection(node) {
    var range = document.createRange();
    range.selectNodeContents(node);
    var selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand("copy");
  }
  all(".copy").forEach(function (button) {
    button.addEventListener("click", function () {
      var source = button.parentNode.querySelector("pre");
      var before = button.innerHTML;
      function done() {
        button.textContent = button.getAttribute("data-done-" + root.lang);
        window.setTimeout(function () { button.innerHTML = before; }, 1200);
      }
      if (copyBySelection(source)) { done(); }
    });
  });

  var table = byId("table");
  if (!table) { return; }
  var body = table.tBodies[0];
  var rows = Array.prototype.slice.call(body.rows);
  var filter = byId("filter"), verdict = byId("verdict");
  rows.forEach(function (row) {
    row.words = row.textContent.toLowerCase();
    var card = byId("op" + row.getAttribute("data-c"));
    var target = card || (row.className === "first" ? byId("finding") : null);
    if (!target) { return; }
    function open() {
      if (card) { card.open = true; }
      target.scrollIntoView();
    }
    row.setAttribute("data-open", "");
    row.tabIndex = 0;
    row.addEventListener("click", function () { if (!window.getSelection().toString()) { open(); } });
    row.addEventListener("keydown", function (event) {
      if (event.key !== "Enter") { return; }
      event.preventDefault();  // else the same key would close what it opened
      open();
      if (card) { card.querySelector("summary").focus(); }
    });
  });

  function apply() {
    var words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    var shown = 0;
    rows.forEach(function (row) {
      var fits = (!verdict.value || row.getAttribute("data-v") === verdict.value) && words.every(function (word) { return row.words.indexOf(word) >= 0; });
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    });
    byId("shown").textContent = String(shown);
    byId("nothing").hidden = shown > 0;
  }
  filter.addEventListener("input", apply);
  verdict.addEventListener("change", apply);

  function visible(cell) {
    var part = cell.querySelector("." + root.lang);
    return (part || cell).textContent;
  }
  var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
  heads.forEach(function (head, column) {
    head.querySelector("button").addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var keyed = rows.map(function (row, place) { return { row: row, key: visible(row.cells[column]), place: place }; });
      keyed.sort(function (one, two) {
        var numbers = one.key !== "" && two.key !== "" && !isNaN(one.key) && !isNaN(two.key);
        var order = numbers ? Number(one.key) - Number(two.key) : one.key.localeCompare(two.key);
        return (down ? -order : order) || one.place - two.place;
      });
      keyed.forEach(function (item) { body.appendChild(item.row); });
    });
  });
})();
