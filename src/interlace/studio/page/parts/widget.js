// A page of the studio in an output of a notebook: a frame, whose requests go to Python as messages of the widget.

function channel(model) {
  const heard = new Map(); // by request, what takes its messages
  let last = 0;
  model.on("msg:custom", (message) => heard.get(message.id)?.(message));

  function request(name, data, signal, take) {
    const id = (last += 1);
    heard.set(id, take);
    model.send({ id, name, data });
    signal?.addEventListener("abort", () => {
      heard.delete(id);
      model.send({ id, cancel: true });
      take({ aborted: true, last: true });
    });
    return () => heard.delete(id);
  }

  const failed = ({ error, aborted }) => (aborted ? new DOMException("aborted", "AbortError") : error ? new Error(error) : null);

  async function* lines(name, data, signal) {
    const queue = [];
    let wake = () => {};
    const close = request(name, data, signal, (message) => {
      queue.push(message);
      wake();
    });
    try {
      for (;;) {
        while (!queue.length) await new Promise((resolve) => { wake = resolve; });
        const message = queue.shift();
        if (failed(message)) throw failed(message);
        yield message.found;
        if (message.last) return;
      }
    } finally {
      close();
    }
  }

  return {
    link: model.get("link"),
    lines,
    ask: async (name, data, signal) => {
      for await (const found of lines(name, data, signal)) return found;
      return undefined;
    },
  };
}

function render({ model, el }) {
  const frame = document.createElement("iframe");
  Object.assign(frame, { title: "Interlace studio", channel: channel(model), srcdoc: model.get("page") });
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`;
  el.append(frame);
}

export default { render };
