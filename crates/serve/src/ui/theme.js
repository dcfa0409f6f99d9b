// Before the first paint: the colours that were chosen, if any. By itself the page follows the system.
"use strict";
try {
  const theme = localStorage.getItem("zinc.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be closed to us; the system's colours do.
}
