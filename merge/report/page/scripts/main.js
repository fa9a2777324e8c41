// Draws every section that has data, one after the other, so that the first screen does not wait for the last.
function switchTheme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.dispatchEvent(new Event("themechange"));
}

function drawSection(place, page) {
  try {
    place.replaceChildren(...VIEWS[place.dataset.view](page));
  } catch (error) {
    console.error(place.dataset.view, error);
    place.replaceChildren(el("p", { class: "absent" }, `This section could not be drawn: ${error.message}`));
  }
}

function main() {
  const page = JSON.parse(document.getElementById("document").textContent);
  document.getElementById("theme").addEventListener("click", switchTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
  addEventListener("beforeprint", () => document.dispatchEvent(new Event("themechange")));
  const places = [...document.querySelectorAll("[data-view]")];
  const next = () => {
    const place = places.shift();
    if (!place) { document.documentElement.dataset.drawn = "yes"; return; }
    drawSection(place, page);
    setTimeout(next);
  };
  next();
}

main();
