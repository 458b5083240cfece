// EventSource as browsers have it, as far as docs/http-api.md uses it, for a Node that has none of its own.
class EventSourceOnFetch extends EventTarget {
  #stop = new AbortController();
  #retry = 1000;
  #id = "";

  constructor(url) {
    super();
    this.#run(url);
  }

  close() {
    this.#stop.abort();
  }

  async #run(url) {
    while (!this.#stop.signal.aborted) {
      try {
        const headers = { Accept: "text/event-stream", ...(this.#id && { "Last-Event-ID": this.#id }) };
        const response = await fetch(url, { headers, signal: this.#stop.signal });
        if (response.status !== 200) return;
        let rest = "";
        for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
          const blocks = (rest + chunk).split("\n\n");
          rest = blocks.pop();
          for (const block of blocks) this.#dispatch(block.split("\n"));
        }
      } catch {
        if (this.#stop.signal.aborted) return;
      }
      await new Promise((resolve) => setTimeout(resolve, this.#retry));
    }
  }

  #dispatch(lines) {
    const fields = { event: "message", data: undefined };
    for (const line of lines) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (fields.id !== undefined) this.#id = fields.id;
    if (fields.retry !== undefined) this.#retry = Number(fields.retry);
    if (fields.data === undefined || this.#stop.signal.aborted) return;
    const message = new MessageEvent(fields.event, { data: fields.data, lastEventId: this.#id });
    if (fields.event === "message") this.onmessage?.(message);
    this.dispatchEvent(message);
  }
}

globalThis.EventSource ??= EventSourceOnFetch;
