// Requests to the API of the server that served this page.
import { signal } from '@preact/signals'

const tokenKey = 'ipwitness.token'

/** Bearer token of the user. It lives as long as the tab, and never in an address. */
export const token = signal(sessionStorage.getItem(tokenKey) ?? '')
/** Why the server wants the user to log in; empty if it does not. */
export const loginReason = signal('')
/** How far the server's clock is ahead of this browser's, in milliseconds. */
export const clockOffset = signal(0)

/** Failure is an error that the server answered with. */
export class Failure extends Error {
  readonly status: number
  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

export type Query = Record<string, string | number | undefined>

/** Uses a token from now on. An empty one logs out. */
export function useToken(text: string) {
  if (text) sessionStorage.setItem(tokenKey, text)
  else sessionStorage.removeItem(tokenKey)
  token.value = text
  loginReason.value = ''
}

/** Returns a successful response of the API. Paths are relative to the page. */
export async function open(path: string, query: Query = {}, signal?: AbortSignal): Promise<Response> {
  const url = new URL(path, document.baseURI)
  url.hash = ''
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== '') url.searchParams.set(name, String(value))
  }
  const headers: Record<string, string> = { Accept: 'application/json' }
  const used = token.value
  if (used) headers.Authorization = `Bearer ${used}`
  const response = await fetch(url, { headers, signal: signal ?? null, cache: 'no-store', redirect: 'error', credentials: 'same-origin' })
  const date = Date.parse(response.headers.get('Date') ?? '')
  const offset = date - Date.now()
  clockOffset.value = Math.abs(offset) > 2000 ? offset : 0 // the header has whole seconds
  if (response.ok) return response
  const text = await response.text()
  let message = `the server answered ${response.status} ${response.statusText}`
  try {
    const body = JSON.parse(text)
    message = (body.error ?? body).message || message
  } catch {
    // Not an error of ipwitness: a proxy, perhaps.
  }
  if (response.status === 401 && used === token.value) loginReason.value = message
  throw new Failure(response.status, message)
}

/** Returns the answer to a request. */
export async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return (await open(path, query, signal)).json() as Promise<T>
}

/** Yields the pages of a list, but not more than most. The last one has no nextPageToken if the list is complete. */
export async function* pages<T extends { nextPageToken: string }>(path: string, query: Query, most: number, signal?: AbortSignal): AsyncGenerator<T> {
  let token = ''
  for (let n = 0; n < most; n++) {
    const page = await get<T>(path, { ...query, page_token: token }, signal)
    yield page
    token = page.nextPageToken
    if (!token) return
  }
}

/** Yields the lines of a response as they arrive. */
export async function* lines(response: Response): AsyncGenerator<string[]> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    const parts = (rest + value).split('\n')
    rest = parts.pop()!
    if (parts.length) yield parts
  }
}

/** The words for an error. */
export function reason(error: unknown): string {
  if (error instanceof Failure) return error.message
  if (error instanceof TypeError) return 'the server cannot be reached'
  return error instanceof Error ? error.message : String(error)
}
