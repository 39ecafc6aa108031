import { expect, test } from 'vitest'
import { createGroupCommit } from './group-commit.ts'

/** Writes that are answered when the test says so. */
function openWrites() {
  const groups: { items: readonly number[]; end: PromiseWithResolvers<void> }[] = []
  const alone: number[] = []
  const write = createGroupCommit({
    async writeGroup(items: readonly number[]) {
      const end = Promise.withResolvers<void>()
      groups.push({ items, end })
      await end.promise
      return items.map((item) => (item < 0 ? ('apart' as const) : { item }))
    },
    async writeAlone(item) {
      alone.push(item)
      if (item === 13) throw new Error('no 13')
      return { item: item * 10 }
    },
  })
  return { write, groups, alone, soon: () => new Promise<void>((resolve) => setImmediate(() => setImmediate(resolve))) }
}

test('what comes in the same moment goes in one group, and what comes meanwhile in the next', async () => {
  const { write, groups, soon } = openWrites()
  const first = [write(1), write(2)]
  await soon()
  const second = [write(3), write(4)]
  await soon()
  expect(groups.map(({ items }) => items)).toEqual([[1, 2]])
  groups[0]?.end.resolve()
  expect(await Promise.all(first)).toEqual([{ item: 1 }, { item: 2 }])
  await soon()
  expect(groups.map(({ items }) => items)).toEqual([
    [1, 2],
    [3, 4],
  ])
  groups[1]?.end.resolve()
  expect(await Promise.all(second)).toEqual([{ item: 3 }, { item: 4 }])
})

test('a group has at most 100 items', async () => {
  const { write, groups, soon } = openWrites()
  const all = Promise.all(Array.from({ length: 150 }, (_, item) => write(item)))
  await soon()
  groups[0]?.end.resolve()
  await soon()
  groups[1]?.end.resolve()
  expect(await all).toHaveLength(150)
  expect(groups.map(({ items }) => items.length)).toEqual([100, 50])
})

test('an item that is left apart goes alone, and the next group does not wait for it', async () => {
  const { write, groups, alone, soon } = openWrites()
  const left = write(-2)
  const taken = write(5)
  await soon()
  groups[0]?.end.resolve()
  expect(await Promise.all([left, taken])).toEqual([{ item: -20 }, { item: 5 }])
  expect(alone).toEqual([-2])
})

test('when a group fails each of its items goes alone, so that one fails no other', async () => {
  const { write, groups, alone, soon } = openWrites()
  const bad = write(13)
  const good = write(6)
  await soon()
  groups[0]?.end.reject(new Error('the statement failed'))
  await expect(bad).rejects.toThrow('no 13')
  expect(await good).toEqual({ item: 60 })
  expect(alone).toEqual([13, 6])
})

test('a group that hangs holds up its own items alone', async () => {
  const groups: string[][] = []
  const write = createGroupCommit<string, { wrote: string }>({
    writeGroup: async (items) => {
      groups.push([...items])
      if (items.includes('hangs')) await new Promise(() => undefined)
      return items.map((wrote) => ({ wrote }))
    },
    writeAlone: async (wrote) => ({ wrote }),
  })
  void write('hangs')
  await new Promise((resolve) => setImmediate(resolve))
  expect(await Promise.all([write('one'), write('two')])).toEqual([{ wrote: 'one' }, { wrote: 'two' }])
  expect(await write('three')).toEqual({ wrote: 'three' })
  expect(groups).toEqual([['hangs'], ['one', 'two'], ['three']])
})
