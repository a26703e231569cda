// Folds the accordion around this element in a narrow window, so that the answer follows the essential controls.
if (window.innerWidth <= 900) {
  let box = element.parentElement;
  while (box && !box.querySelector(":scope > button.label-wrap")) box = box.parentElement;
  const button = box && box.querySelector(":scope > button.label-wrap");
  const isOpen = () => button && button.classList.contains("open");
  if (isOpen()) {
    // A tab that is opened for the first time gets its initial state once more, after this has run.
    const again = new MutationObserver(() => { if (isOpen()) { again.disconnect(); button.click(); } });
    button.addEventListener("click", (event) => { if (event.isTrusted) again.disconnect(); });
    again.observe(button, { attributes: true });
    button.click();
  }
}
