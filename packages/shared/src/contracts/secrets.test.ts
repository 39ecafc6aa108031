import { expect, test } from 'vitest'
import { withoutSecrets } from './secrets.ts'

test.each([
  ['postgresql://shop:pass@db:5432/shop is away', 'postgresql://[redacted]@db:5432/shop is away'],
  ['redis://:p@ss@cache:6379', 'redis://[redacted]@cache:6379'],
  ['"url":"https://token@host/x?y"', '"url":"https://[redacted]@host/x?y"'],
  ['amqp+ssl://a:b@one and http://c:d@two', 'amqp+ssl://[redacted]@one and http://[redacted]@two'],
  ['Authorization: Bearer abc.def-ghi_jkl=', 'Authorization: Bearer [redacted]'],
  ['authorization: basic b3BzOnNlY3JldA==', 'authorization: basic [redacted]'],
  ['Incorrect API key provided: sk-proj-0123456789abcdef.', 'Incorrect API key provided: sk-[redacted].'],
  ['signkey-prod-0123456789abcdef', 'signkey-[redacted]'],
])('SEC-6: a login, a token or a key is cut out of "%s"', (text, shown) => {
  expect(withoutSecrets(text)).toBe(shown)
})

test.each([
  'connect ECONNREFUSED 127.0.0.1:5432',
  'see https://example.com/a@b and mail me@example.com',
  'The bearer of this letter is basic in kind',
  'risk-averse sk-8 task-0123456789abcdef',
  'git@github.com:owner/name.git',
])('what is no secret stays: "%s"', (text) => {
  expect(withoutSecrets(text)).toBe(text)
})

test('a long text without an end is done soon', () => {
  const before = performance.now()
  withoutSecrets(`http://${'a:'.repeat(200_000)}`)
  withoutSecrets('sk-'.repeat(100_000))
  expect(performance.now() - before).toBeLessThan(2_000)
})
