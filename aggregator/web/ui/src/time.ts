// Times: relative and absolute, with one time zone for the whole page.
import { computed, signal } from '@preact/signals'
import { clockOffset } from './api'

const zoneKey = 'ipwitness.zone'

/** Local is whether times are in the time zone of the browser; otherwise they are in UTC, as in the
 * output of the commands. */
export const local = signal(localStorage.getItem(zoneKey) === 'local')
export const zone = computed(() => (local.value ? Intl.DateTimeFormat().resolvedOptions().timeZone : 'UTC'))

export function toggleZone() {
  local.value = !local.value
  localStorage.setItem(zoneKey, local.value ? 'local' : 'utc')
}

const browser = signal(Date.now())
setInterval(() => (browser.value = Date.now()), 1000)

/** The time by the server's clock, which moves once a second. */
export const now = computed(() => browser.value + clockOffset.value)

/** A time of the API in milliseconds; NaN if it is unset. */
export const ms = (time: string | undefined) => (time ? Date.parse(time) : NaN)

const two = (n: number) => String(n).padStart(2, '0')

/** The parts of a time in the selected zone. */
function parts(t: number) {
  const d = new Date(t)
  return local.value
    ? { day: `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`, clock: `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}` }
    : { day: `${d.getUTCFullYear()}-${two(d.getUTCMonth() + 1)}-${two(d.getUTCDate())}`, clock: `${two(d.getUTCHours())}:${two(d.getUTCMinutes())}:${two(d.getUTCSeconds())}` }
}

/** A time as short as it is unambiguous: without the day if that is today. */
export function short(t: number): string {
  const { day, clock } = parts(t)
  return day === parts(now.value).day ? clock : `${day} ${clock}`
}

/** A time with day and zone. */
export function full(t: number): string {
  const { day, clock } = parts(t)
  return `${day} ${clock} ${zone.value}`
}

/** A duration in its two largest units, as the commands write it. */
export function duration(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000))
  if (s < 60) return `${s}s`
  if (s < 3600) return s % 60 && s < 600 ? `${Math.floor(s / 60)}m${s % 60}s` : `${Math.floor(s / 60)}m`
  if (s < 86400) return Math.floor((s % 3600) / 60) ? `${Math.floor(s / 3600)}h${Math.floor((s % 3600) / 60)}m` : `${Math.floor(s / 3600)}h`
  return Math.floor((s % 86400) / 3600) ? `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h` : `${Math.floor(s / 86400)}d`
}

/** How long ago a time was. */
export const ago = (t: number) => (now.value - t < 1000 ? 'now' : `${duration(now.value - t)} ago`)

/** A protobuf duration ("12.5s") in milliseconds. */
export const fromDuration = (d: string) => parseFloat(d) * 1000
