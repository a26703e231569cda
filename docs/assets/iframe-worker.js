// Browsers start no worker for a page that is opened from a file, and the search needs one: an invisible frame does the
// same work there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const base = new URL(url, location.href)
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.frame = frame
      this.ready = new Promise(resolve => {
        const page = frame.contentDocument
        page.open()
        page.write("<!doctype html><html><body></body></html>")
        page.close()
        const inside = frame.contentWindow
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data })
          this.dispatchEvent(event)
          if (this.onmessage) this.onmessage(event)
        }
        inside.importScripts = (...urls) => Promise.all(urls.map(load))
        function load(source) {
          return new Promise((done, failed) => {
            const script = page.createElement("script")
            script.src = new URL(source, base)
            script.onload = done
            script.onerror = failed
            page.body.appendChild(script)
          })
        }
        load(base).then(resolve)
      })
    }
    postMessage(data) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow
        inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      })
    }
    terminate() { this.frame.remove() }
  }
}
