// A list of any length in dense rows, each of which opens in place. Only the rows near the window are in the document.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import type { ComponentChildren } from 'preact'

/** Pixels above and below the window in which rows are drawn, and the step in which the drawn part moves. */
const spare = 600, step = 300

export function Folds<T>({ items, id, mark, label, row, detail, linked = '', inView = true, first = false }: {
  items: T[]
  id: (item: T) => string
  /** What a row says in one text, for programs that look at the page. */
  mark: (item: T) => string
  label: string
  row: (item: T) => ComponentChildren
  detail: (item: T) => ComponentChildren
  /** The id of the item that the address of the view names: it is open and, unless a row in it is meant, in view. */
  linked?: string
  inView?: boolean
  /** Whether the first item is open at first. */
  first?: boolean
}) {
  const box = useRef<HTMLUListElement>(null)
  /** The choices of the user. */
  const [chosen, choose] = useState(new Map<string, boolean>())
  const [heights, setHeights] = useState(new Map<string, number>())
  const [rowHeight, setRowHeight] = useState(40)
  const [top, setTop] = useState(0)
  const isOpen = (item: T, i: number) => chosen.get(id(item)) ?? (id(item) === linked || (first && i === 0))

  useEffect(() => {
    const measure = () => {
      if (box.current) setTop(Math.floor(-box.current.getBoundingClientRect().top / step) * step)
    }
    const observer = new ResizeObserver(measure)
    observer.observe(box.current!)
    addEventListener('scroll', measure, { passive: true, capture: true })
    addEventListener('resize', measure)
    measure()
    return () => {
      observer.disconnect()
      removeEventListener('scroll', measure, { capture: true })
      removeEventListener('resize', measure)
    }
  }, [])
  useLayoutEffect(() => {
    const h = box.current?.querySelector<HTMLElement>('.fold')?.offsetHeight
    if (h && h !== rowHeight) setRowHeight(h)
  })

  const from = top - spare, to = top + step + innerHeight + spare
  let y = 0, before = 0, target = -1
  const shown: { item: T; open: boolean }[] = []
  items.forEach((item, i) => {
    const open = isOpen(item, i)
    const height = rowHeight + (open ? heights.get(id(item)) ?? 400 : 0)
    if (linked && id(item) === linked) target = y
    if (y + height < from) before = y + height
    else if (y <= to) shown.push({ item, open })
    y += height
  })
  const drawn = shown.reduce((h, { item, open }) => h + rowHeight + (open ? heights.get(id(item)) ?? 0 : 0), 0)

  const found = target >= 0 && inView
  useEffect(() => {
    if (!found) return
    const inner = box.current!.closest('.scrollbox')
    if (inner) inner.scrollTop = target
    const at = (inner ?? box.current!).getBoundingClientRect().top + scrollY + (inner ? 0 : target)
    requestAnimationFrame(() => scrollTo(0, Math.max(0, at - 80)))
  }, [linked, found])

  const measured = (key: string, height: number) =>
    setHeights((all) => (Math.abs((all.get(key) ?? 0) - height) < 1 ? all : new Map(all).set(key, height)))
  return (
    <ul class="folds" aria-label={label} ref={box} style={{ paddingTop: `${before}px`, paddingBottom: `${Math.max(0, y - before - drawn)}px` }} data-items={items.length}>
      {shown.map(({ item, open }) => (
        <li key={id(item)} data-member={mark(item)}>
          <button type="button" class="fold" aria-expanded={open} onClick={() => choose(new Map(chosen).set(id(item), !open))}>{row(item)}</button>
          {open && <Detail key={id(item)} of={id(item)} measured={measured}>{detail(item)}</Detail>}
        </li>
      ))}
    </ul>
  )
}

function Detail({ of, measured, children }: { of: string; measured: (of: string, height: number) => void; children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null)
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => box.current && measured(of, box.current.offsetHeight))
    observer.observe(box.current!)
    return () => observer.disconnect()
  }, [of])
  return <div class="fold-detail" ref={box}>{children}</div>
}
