// A curve that is drawn with the mouse, a finger or the arrow keys. Gradio calls this with `element` and `trigger`.
const canvas = element.querySelector("canvas"), pen = canvas.getContext("2d");
const heights = new Array(120).fill(0.5);  // from 0, the lower edge, to 1
let at = 0, drawing = false, changed = false;

function draw() {
  const across = i => 4 + i / (heights.length - 1) * (canvas.width - 8);
  const down = h => 4 + (1 - h) * (canvas.height - 8);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.lineWidth = 4;
  pen.lineJoin = "round";
  pen.strokeStyle = "#0072B2";
  pen.beginPath();
  heights.forEach((h, i) => pen.lineTo(across(i), down(h)));
  pen.stroke();
  pen.fillStyle = "#D55E00";
  pen.beginPath();
  pen.arc(across(at), down(heights[at]), 8, 0, 7);
  pen.fill();
}

function move(to, height) {  // with a straight line from where the pen was
  const from = at, start = heights[at];
  to = Math.max(0, Math.min(heights.length - 1, to));
  height = Math.max(0, Math.min(1, height));
  const step = Math.sign(to - from) || 1;
  for (let i = from; i !== to; i += step) heights[i] = start + (height - start) * (i - from) / (to - from);
  heights[to] = height;
  at = to;
  changed = true;
  draw();
}

function put(event, jump) {
  const box = canvas.getBoundingClientRect();
  const to = Math.round((event.clientX - box.left) / box.width * (heights.length - 1));
  if (jump) at = Math.max(0, Math.min(heights.length - 1, to));
  move(to, 1 - (event.clientY - box.top) / box.height);
}

function send() {
  if (changed) trigger("input", { curve: heights.map(h => Math.round(h * 1000) / 1000) });
  changed = false;
}

canvas.addEventListener("pointerdown", event => {
  drawing = true;
  canvas.setPointerCapture(event.pointerId);
  put(event, true);
});
canvas.addEventListener("pointermove", event => { if (drawing) put(event, false); });
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { drawing = false; send(); });
canvas.addEventListener("keydown", event => {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }[event.key];
  if (!steps) return;
  event.preventDefault();
  move(at + steps[0], heights[at] + steps[1]);
});
for (const name of ["keyup", "blur"]) canvas.addEventListener(name, send);
draw();
