// The address of a view is in the fragment, so that the page works behind any path prefix and every
// view can be linked to.
import { signal } from '@preact/signals'

export interface Route {
  view: string
  /** What the view is about: an address, for example; empty for the whole. */
  subject: string
  query: URLSearchParams
}

function read(): Route {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?')
  const [view = '', ...rest] = path.split('/')
  return { view: decode(view) || 'now', subject: decode(rest.join('/')), query: new URLSearchParams(query) }
}

function decode(s: string) {
  try {
    return decodeURIComponent(s)
  } catch {
    return s
  }
}

export const route = signal(read())

addEventListener('hashchange', () => {
  const before = route.value
  route.value = read()
  if (route.value.view !== before.view || route.value.subject !== before.subject) {
    scrollTo(0, 0)
    document.querySelector<HTMLElement>('main')?.focus({ preventScroll: true })
  }
})

/** The link to a view. */
export function to(view: string, subject = '', query: Record<string, string> = {}): string {
  const entries = Object.entries(query).filter(([, v]) => v)
  const encoded = encodeURIComponent(subject).replaceAll('%3A', ':').replaceAll('%2F', '/')
  return `#/${view}${subject ? '/' + encoded : ''}${entries.length ? '?' + new URLSearchParams(entries) : ''}`
}

export function go(link: string) {
  location.hash = link
}

/** Changes the query of the current view without a new entry in the history of the browser. */
export function refine(query: Record<string, string>) {
  const { view, subject, query: old } = route.value
  const link = to(view === 'now' && !subject ? '' : view, subject, { ...Object.fromEntries(old), ...query })
  history.replaceState(null, '', link)
  route.value = read()
}
