// Whether several windows show this page. With HTTP/1.1, they share the six connections that a browser
// opens to a server.
import { computed, signal } from '@preact/signals'

const sayEvery = 5_000
const channel = new BroadcastChannel('ipwitness')
const heard = signal(-Infinity)
const clock = signal(0)

/** Whether connections are scarce, because another window shows the page, too. */
export const crowded = computed(() => location.protocol === 'http:' && clock.value - heard.value < 2.5 * sayEvery)

function say() {
  clock.value = performance.now()
  if (!document.hidden) channel.postMessage('shown')
}

/** Tells other windows of this one from now on, and listens to them. */
export function meet() {
  channel.addEventListener('message', ({ data }) => {
    const alone = !crowded.value
    clock.value = performance.now()
    heard.value = data === 'shown' ? clock.value : -Infinity // if a third window shows the page, it says so soon
    if (alone && data === 'shown') say()
  })
  const leave = () => channel.postMessage('hidden')
  addEventListener('pagehide', leave)
  document.addEventListener('visibilitychange', () => (document.hidden ? leave() : say()))
  setInterval(say, sayEvery)
  say()
}
