// Folds the accordion around this element in a narrow window, so that the answer follows the essential controls.
if (window.innerWidth <= 900) {
  let box = element.parentElement;
  while (box && !box.querySelector(":scope > button.label-wrap")) box = box.parentElement;
  const button = box && box.querySelector(":scope > button.label-wrap");
  if (button && button.classList.contains("open")) button.click();
}
