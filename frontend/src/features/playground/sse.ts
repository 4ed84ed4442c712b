/** Server-sent events from raw bytes. Any split of the bytes, also inside a character or a line end, gives the same events. */
export class SseParser {
  private readonly decoder = new TextDecoder("utf-8");
  private buffer = "";
  private data: string[] = [];
  private afterCr = false;

  /** The data of each event that these bytes complete. */
  push(bytes: Uint8Array): string[] {
    return this.take(this.decoder.decode(bytes, { stream: true }));
  }

  /** The data of events that the end of the stream completes: none, an unfinished event is dropped. */
  end(): string[] {
    return this.take(this.decoder.decode());
  }

  private take(text: string): string[] {
    const done: string[] = [];
    for (const char of text) {
      if (char === "\n" && this.afterCr) {
        this.afterCr = false; // the second half of a CRLF
        continue;
      }
      this.afterCr = char === "\r";
      if (char !== "\n" && char !== "\r") {
        this.buffer += char;
        continue;
      }
      const line = this.buffer;
      this.buffer = "";
      if (line !== "") this.field(line);
      else if (this.data.length > 0) {
        done.push(this.data.join("\n"));
        this.data = [];
      }
    }
    return done;
  }

  private field(line: string): void {
    if (!line.startsWith("data")) return; // comments and other fields carry nothing for us
    const rest = line.slice(4);
    if (rest === "") this.data.push("");
    else if (rest.startsWith(":")) this.data.push(rest.startsWith(": ") ? rest.slice(2) : rest.slice(1));
  }
}
