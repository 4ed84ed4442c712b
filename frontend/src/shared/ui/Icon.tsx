/** Small drawings; each stands beside its word and is hidden from readers. */
const PATHS = {
  check: "M3 8.5l3.2 3.2L13 5",
  cross: "M4 4l8 8M12 4l-8 8",
  alert: "M8 2.5L14.5 13.5h-13zM8 6.5v3.5M8 11.8v.2",
  info: "M8 1.8a6.2 6.2 0 100 12.4A6.2 6.2 0 008 1.8zM8 7.3v3.8M8 4.8v.3",
  spinner: "M8 1.8a6.2 6.2 0 106.2 6.2",
  circle: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M4.5 3l8 5-8 5z",
  clock: "M8 1.8a6.2 6.2 0 100 12.4A6.2 6.2 0 008 1.8zM8 4.5V8l2.5 1.8",
  stop: "M4 4h8v8H4z",
  gauge: "M2.5 12a6 6 0 1111 0M8 9l3-3",
  box: "M2.5 5L8 2.2 13.5 5v6L8 13.8 2.5 11zM2.5 5L8 7.8 13.5 5M8 7.8v6",
  rocket: "M8 13V8M5 9c0-4 1.4-6.2 3-7 1.6.8 3 3 3 7l-1.5 1.5h-3z",
  layers: "M8 2l6 3-6 3-6-3zM2 8l6 3 6-3M2 11l6 3 6-3",
  key: "M10.5 2.5a3 3 0 11-2.2 5L3 12.8V14M5 11l1.5 1.5",
  bars: "M3 13.5V8M8 13.5v-11M13 13.5V6",
  paper: "M3.5 2h6l3 3v9h-9zM6 7h4M6 10h4",
  people: "M6 7.5a2.5 2.5 0 100-5 2.5 2.5 0 000 5zM1.5 13.5c0-2.5 2-4 4.5-4s4.5 1.5 4.5 4M11 7.2a2 2 0 10-1-3.8M12 9.8c1.5.5 2.5 1.8 2.5 3.5",
  home: "M2.5 7.5L8 2.5l5.5 5M4 6.5v7h8v-7",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  person: "M8 7.5a2.7 2.7 0 100-5.4 2.7 2.7 0 000 5.4zM3 14c0-3 2.2-4.5 5-4.5s5 1.5 5 4.5",
  exit: "M6 2.5H3v11h3M7 8h7M11 5l3 3-3 3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, tone }: { name: IconName; tone?: Tone }) {
  return (
    <svg className={tone ? `icon tone-${tone}` : "icon"} viewBox="0 0 16 16" aria-hidden="true" focusable="false" data-spin={name === "spinner"} fill="none" stroke="currentColor" strokeWidth="1.6" strokeLinecap="round" strokeLinejoin="round">
      <path d={PATHS[name]} />
    </svg>
  );
}

export type Tone = "ok" | "warn" | "danger" | "info" | "idle";
