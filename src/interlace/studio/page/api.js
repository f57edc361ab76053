// Requests to the server of this page, which keeps nothing between them; in a notebook, where the page stands in a frame
// without a server, to the channel that the frame has.

export const channel = window.frameElement?.channel ?? null;

export async function ask(name, data, signal) {
  if (channel) return channel.ask(name, data, signal);
  const answer = await send(name, data, signal);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ?? answer.statusText);
  return found;
}

// Lines of an answer that is still being found, one after the other.
export async function* lines(name, data, signal) {
  if (channel) {
    yield* channel.lines(name, data, signal);
    return;
  }
  const answer = await send(name, data, signal);
  if (!answer.ok) throw new Error((await answer.json()).error);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

async function send(name, data, signal) {
  const headers = { "content-type": "application/json" };
  try {
    return await fetch(`/api/${name}`, { method: "POST", headers, body: JSON.stringify(data), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; start it again with: interlace studio. The address keeps the game.");
  }
}
