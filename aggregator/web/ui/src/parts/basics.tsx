// Small parts that all views use.
import { useState } from 'preact/hooks'
import type { ComponentChildren } from 'preact'
import { to } from '../route'
import { ago, full, now, short } from '../time'
import { ownerKind, ownerName, scopeMeaning, scopeText } from '../words'
import type { Action, Owner, Scope } from '../types'

/** Each state has a shape and a word, so that nobody has to tell colours apart. */
const marks: Record<string, { shape: string; tone: string; word: string }> = {
  CONFIRMED: { shape: '✖', tone: 'bad', word: 'confirmed' },
  SUSPECTED: { shape: '◐', tone: 'warn', word: 'suspected' },
  RESOLVED: { shape: '✔', tone: 'good', word: 'resolved' },
  ACKNOWLEDGED: { shape: '◼', tone: 'quiet', word: 'acknowledged' },
  CRITICAL: { shape: '▲', tone: 'bad', word: 'critical' },
  WARNING: { shape: '◆', tone: 'warn', word: 'warning' },
  INFO: { shape: '●', tone: 'quiet', word: 'info' },
  LIVE: { shape: '✔', tone: 'good', word: 'live' },
  DISCONNECTED: { shape: '✖', tone: 'bad', word: 'disconnected' },
  STALE: { shape: '◐', tone: 'warn', word: 'stale' },
  GONE: { shape: '○', tone: 'quiet', word: 'gone' },
  KNOWN: { shape: '✔', tone: 'good', word: 'known' },
  READING: { shape: '◐', tone: 'warn', word: 'reading' },
  MISSING: { shape: '✖', tone: 'bad', word: 'records missing' },
  UNREADABLE: { shape: '✖', tone: 'bad', word: 'unreadable' },
  PROBLEM: { shape: '◆', tone: 'warn', word: 'problem' },
}

export const mark = (state: string) => marks[state] ?? { shape: '○', tone: 'quiet', word: state.toLowerCase() }

export function Badge({ state, word }: { state: string; word?: string }) {
  const m = mark(state)
  return <span class={`badge ${m.tone}`}><span aria-hidden="true">{m.shape}</span> {word ?? m.word}</span>
}

/** A time, both relative and absolute. */
export function Time({ at, prefix }: { at: number; prefix?: string }) {
  if (!Number.isFinite(at)) return null
  return (
    <time dateTime={new Date(at).toISOString()} title={full(at)}>
      {prefix && `${prefix} `}{short(at)} <span class="muted">({ago(at)})</span>
    </time>
  )
}

export const Ago = ({ at }: { at: number }) =>
  Number.isFinite(at) ? <time dateTime={new Date(at).toISOString()} title={full(at)}>{ago(at)}</time> : null

export function Scoped({ scope }: { scope: Scope | undefined }) {
  return <span class="tag" title={scopeMeaning(scope)}>{scopeText(scope)}</span>
}

export const AddressLink = ({ address, at }: { address: string; at?: string }) =>
  <a class="mono" href={to('address', address, at ? { at } : {})}>{address}</a>

/** A button that copies a text. Without a clipboard (plain HTTP), it selects the text instead. */
export function Copy({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [said, say] = useState('')
  const copy = async (event: MouseEvent) => {
    const shown = (event.currentTarget as HTMLElement).parentElement?.querySelector('code')
    try {
      await navigator.clipboard.writeText(text)
      say('Copied')
    } catch {
      if (shown) getSelection()?.selectAllChildren(shown)
      say('Press Ctrl+C')
    }
    setTimeout(() => say(''), 2000)
  }
  return <button type="button" class="copy" onClick={copy} aria-label={`${label}: ${text.split('\n')[0]}`}><span aria-live="polite">{said || label}</span></button>
}

export function Command({ text, node }: { text: string; node?: string }) {
  return (
    <div class="command">
      {node && <div class="where">on {node}, as root</div>}
      <div class="line"><code tabIndex={0}>{text}</code><Copy text={text} /></div>
    </div>
  )
}

/** Steps of a remedy. Alternatives have letters, because exactly one of them is to be carried out. */
export function Steps({ actions }: { actions: Action[] }) {
  return (
    <ol class="steps">
      {actions.map((a) => (
        <li>
          <span class="prose">{a.text}</span>
          {a.command && <Command text={a.command} node={a.node} />}
          {a.choice.map((c, i) => (
            <div class="choice">
              <b>{String.fromCharCode(97 + i)})</b> If {c.when}:
              <Steps actions={c.actions} />
            </div>
          ))}
        </li>
      ))}
    </ol>
  )
}

/** An owner in a few lines. */
export function OwnerBlock({ owner, note }: { owner: Owner; note?: ComponentChildren }) {
  const w = owner.workload
  return (
    <div class="owner">
      <div class="who"><span class="muted">{ownerKind(owner)}</span> <b class="wrap">{ownerName(owner)}</b> {owner.state !== 'LIVE' && <Badge state={owner.state} />}</div>
      <dl>
        <dt>node</dt><dd>{owner.node ? <a href={to('map', owner.node)}>{owner.node}</a> : 'unknown'}{owner.interface && <> · <span class="mono">{owner.interface}</span></>}</dd>
        {owner.mac && <><dt>MAC</dt><dd><a class="mono" href={to('address', '', { q: owner.mac })}>{owner.mac}</a></dd></>}
        {w?.controller && <><dt>of</dt><dd>{w.controller.kind} {w.controller.name}</dd></>}
        <dt>since</dt><dd><Time at={Date.parse(owner.assignedAt ?? owner.firstSeen ?? '')} /></dd>
      </dl>
      {owner.excluded && <p class="small muted">Not counted: {owner.excluded}</p>}
      {w?.orphaned && <p class="small"><Badge state="PROBLEM" word="left behind" /> Kubernetes has no such pod any more</p>}
      {note}
    </div>
  )
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>
}

/** A list that shows its first items until the user wants all. */
export function More<T>({ items, most, children }: { items: T[]; most: number; children: (item: T) => ComponentChildren }) {
  const [all, setAll] = useState(false)
  return (
    <>
      {(all ? items : items.slice(0, most)).map(children)}
      {items.length > most && !all && <button type="button" class="link" onClick={() => setAll(true)}>and {(items.length - most).toLocaleString('en-US')} more</button>}
    </>
  )
}

/** The current time, for parts that must be drawn again as it passes. */
export const useNow = () => now.value
