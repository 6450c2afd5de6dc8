// Tests of src/watch.ts and of the timeline. The build runs them.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runnerImport } from 'vite'

// What the modules use of a browser when they are loaded.
const storage = { getItem: () => null, setItem() {} }
const clock = setInterval
Object.assign(globalThis, {
  localStorage: storage,
  sessionStorage: storage,
  location: { hash: '' },
  addEventListener() {},
  setInterval: (...args) => clock(...args).unref(), // the clock of the page must not keep the test running
})
const load = async (path) => (await runnerImport(path, { configFile: false, esbuild: { jsx: 'automatic', jsxImportSource: 'preact' } })).module
const { advance } = await load('./src/watch.ts')
const { lanesOf } = await load('./src/parts/history.tsx')

const message = (text) => {
  const [type, id] = text.split(' ')
  return id ? { type, key: id, item: { id } } : { type, key: '' }
}

/** The ids that are shown after each chunk of a connection that follows one which had shown ids. */
function shown(before, ...chunks) {
  let state = { current: new Map(before.map((id) => [id, { id }])), fresh: new Map() }
  return chunks.map((chunk) => {
    const previous = [...state.current.keys()]
    const { current } = state
    state = advance(state, chunk.map(message))
    assert.deepEqual([...current.keys()], previous, 'the items that were shown are changed in place')
    return [...state.current.keys()].join()
  })
}

for (const [name, before, chunks, want] of [
  ['the old items stay until the new state is complete', ['old'], [['ADDED a'], ['ADDED b'], ['BOOKMARK']], ['old', 'old', 'a,b']],
  ['an item after the bookmark in the first chunk', [], [['BOOKMARK', 'ADDED a'], ['ADDED b']], ['a', 'a,b']],
  ['items around the bookmark in one chunk', ['old'], [['ADDED a', 'BOOKMARK', 'ADDED b', 'REMOVED a']], ['b']],
  ['a lost and complete state in one later chunk', [], [['ADDED old', 'BOOKMARK'], ['LOST', 'ADDED a', 'BOOKMARK'], ['ADDED b']], ['old', 'a', 'a,b']],
  ['changes before LOST, and after the bookmark', [], [['ADDED old', 'BOOKMARK'], ['ADDED x', 'LOST', 'ADDED a', 'BOOKMARK', 'ADDED b']], ['old', 'a,b']],
  ['a lost state in several chunks', [], [['ADDED old', 'BOOKMARK'], ['LOST', 'ADDED a'], ['ADDED b'], ['BOOKMARK', 'REMOVED a']], ['old', 'old', 'old', 'b']],
  ['a later bookmark changes nothing', [], [['ADDED a', 'BOOKMARK'], ['BOOKMARK'], ['REMOVED a', 'BOOKMARK']], ['a', 'a', '']],
]) test(name, () => assert.deepEqual(shown(before, ...chunks), want))

test('a chunk without items keeps the same map, so that nothing is drawn again', () => {
  const current = new Map([['a', { id: 'a' }]])
  assert.equal(advance({ current, fresh: undefined }, [{ type: 'BOOKMARK', key: '' }]).current, current)
})

test('conflicts of different scopes do not end each other', () => {
  const event = (second, id, state) => ({ time: `2026-01-01T00:00:0${second}Z`, type: 'UPDATED', conflict: { id, state, scope: { kind: 'NETWORK', name: id } } })
  const lanes = lanesOf([event(1, 'a', 'CONFIRMED'), event(2, 'b', 'CONFIRMED'), event(3, 'b', 'RESOLVED')])
  assert.deepEqual(lanes.map((l) => [l.name, l.spans.map((s) => s.until !== undefined)]), [['Held twice · network a', [false]], ['Held twice · network b', [true]]])
})
