// The state of a watch, made from the messages that the server sends.
import type { Coverage } from './types'

export interface Message<T> {
  type: string
  item?: T
  /** What identifies the item; empty without one. */
  key: string
  coverage?: Coverage
}

/** What one connection to a watch has sent so far. */
export interface State<T> {
  /** The items to show. Until the first state is complete, these are the items of the previous connection. */
  current: Map<string, T>
  /** The items of a state that is not complete yet; undefined if there is none. */
  fresh: Map<string, T> | undefined
}

/** Returns the state after a batch of messages. It does not change the current items, which are shown,
 * but it adds to the fresh ones, because copying them for each batch would be slow. */
export function advance<T>(state: State<T>, batch: Message<T>[]): State<T> & { completed: boolean } {
  let { current, fresh } = state
  let completed = false
  for (const m of batch) {
    if (m.type === 'LOST') fresh = new Map()
    if (m.item) {
      if (!fresh && current === state.current) current = new Map(current)
      const into = fresh ?? current
      if (m.type === 'REMOVED') into.delete(m.key)
      else into.set(m.key, m.item)
    }
    if (m.type === 'BOOKMARK' && fresh) {
      current = fresh
      fresh = undefined
      completed = true
    }
  }
  return { current, fresh, completed }
}
