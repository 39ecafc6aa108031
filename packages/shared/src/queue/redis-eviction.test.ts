import { expect, test } from 'vitest'
import { readMemoryInfo } from './redis-eviction.ts'

test('LOSS-15: the limit and the policy are read from what INFO says of memory', () => {
  const info =
    '# Memory\r\nused_memory:1048576\r\nmaxmemory:104857600\r\nmaxmemory_human:100.00M\r\nmaxmemory_policy:volatile-lru\r\n'
  expect(readMemoryInfo(info)).toEqual({ maxBytes: 104_857_600, policy: 'volatile-lru' })
  expect(readMemoryInfo('# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n')).toEqual({
    maxBytes: 0,
    policy: 'noeviction',
  })
})

test('LOSS-15: a server that does not say so is unknown, and no limit of 0', () => {
  expect(readMemoryInfo('# Memory\r\nused_memory:1048576\r\n')).toEqual({ maxBytes: undefined, policy: undefined })
})
