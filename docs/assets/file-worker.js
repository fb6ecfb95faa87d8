// Browsers start no worker from a file. Where the site is opened as files, what would be a worker runs in a hidden frame
// instead, so that search works without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source === inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const load = (path) => `<script src="${path}"><` + "/script>";
      const worker = `
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...paths) => paths.reduce((before, path) => before.then(() => new Promise((done) => {
          const script = document.createElement("script");
          script.src = path;
          script.onload = done;
          document.body.append(script);
        })), Promise.resolve());`;
      inside.document.open();
      inside.document.write("<body><script>" + worker + "<" + "/script>" + load(url) + "</body>");
      inside.document.close();
      this.ready = new Promise((done) => { inside.onload = done; });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
