// Runs before the first paint, so that neither theme nor language flashes.
(function () {
  var root = document.documentElement;
  try {
    var theme = localStorage.getItem("berth.theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    var language = localStorage.getItem("berth.language") || navigator.language || "en";
    root.lang = /^zh/i.test(language) ? "zh-Hans" : "en";
  } catch (error) {
    // Storage can be forbidden; the system's theme and English serve.
  }
})();
