import {
  APICallError,
  LoadAPIKeyError,
  NoOutputGeneratedError,
  RetryError,
  StreamProviderError,
  ToolChoiceViolationError,
} from 'ai'
import { describe, expect, test, vi } from 'vitest'
import { REASONS } from '@offshoot/shared/contracts/reason'
import { classifyModelError, UnusableFinishError } from './model-errors.ts'

function apiError(
  statusCode: number | undefined,
  more: { headers?: Record<string, string>; body?: string; cause?: unknown } = {},
): APICallError {
  return new APICallError({
    message: 'the provider says no, key sk-secret',
    url: 'https://model.example/v1/responses',
    requestBodyValues: { input: 'a prompt' },
    ...(statusCode === undefined ? {} : { statusCode }),
    ...(more.headers === undefined ? {} : { responseHeaders: more.headers }),
    ...(more.body === undefined ? {} : { responseBody: more.body }),
    ...(more.cause === undefined ? {} : { cause: more.cause }),
  })
}

const retryOf = (status: number) => REASONS[classifyModelError(apiError(status)).reason].retry

const withCode = (code: string) => Object.assign(new Error('read failed'), { code })

describe('what a provider answers', () => {
  test.each([
    [401, 'model_auth'],
    [403, 'model_auth'],
    [429, 'model_rate_limited'],
    [408, 'model_unavailable'],
    [409, 'model_unavailable'],
    [500, 'model_unavailable'],
    [503, 'model_unavailable'],
    [400, 'model_refused'],
    [404, 'model_refused'],
  ])('status %i is %s', (status, reason) => {
    expect(classifyModelError(apiError(status))).toMatchObject({ reason, detail: { status } })
  })

  test.each([
    '{"error":{"code":"context_length_exceeded","message":"too long"}}',
    '{"error":{"message":"This model\'s maximum context length is 8192 tokens"}}',
    '{"error":{"message":"Your input exceeds the context window of this model."}}',
  ])('a 400 that says %s is context_overflow', (body) => {
    expect(classifyModelError(apiError(400, { body })).reason).toBe('context_overflow')
  })

  test('COST-5: what is refused for good is never tried again, a limit or an outage is', () => {
    expect([400, 401, 403, 404].map(retryOf)).toEqual(['never', 'never', 'never', 'never'])
    expect([429, 500, 503].map(retryOf)).toEqual(['step', 'step', 'step'])
  })

  test('SEC-6: the sentence for users holds neither the provider’s words nor its body', () => {
    const { sentence } = classifyModelError(apiError(400, { body: '{"error":{"message":"prompt was: …"}}' }))
    expect(sentence).toBe('The model provider refused the request. (status 400)')
  })
})

describe('Retry-After', () => {
  test('is read as seconds', () => {
    expect(classifyModelError(apiError(429, { headers: { 'retry-after': '7' } })).retryAfterMs).toBe(7_000)
  })

  test('is read as a date', () => {
    vi.useFakeTimers({ now: new Date('2026-11-30T12:00:00Z') })
    try {
      const headers = { 'retry-after': 'Mon, 30 Nov 2026 12:00:30 GMT' }
      expect(classifyModelError(apiError(503, { headers })).retryAfterMs).toBe(30_000)
    } finally {
      vi.useRealTimers()
    }
  })

  test('in the past means at once', () => {
    const headers = { 'retry-after': 'Mon, 30 Nov 2020 12:00:30 GMT' }
    expect(classifyModelError(apiError(429, { headers })).retryAfterMs).toBe(0)
  })

  test.each([undefined, { 'retry-after': 'soon' }])('is absent in %o', (headers) => {
    const failure = classifyModelError(apiError(429, headers === undefined ? {} : { headers }))
    expect(failure).not.toHaveProperty('retryAfterMs')
  })
})

describe('a broken connection', () => {
  test.each(['ECONNRESET', 'ECONNREFUSED', 'UND_ERR_SOCKET', 'EAI_AGAIN'])(
    'STATE-5: %s is upstream_disconnect, and the code is kept',
    (code) => {
      expect(classifyModelError(withCode(code))).toMatchObject({ reason: 'upstream_disconnect', detail: { code } })
    },
  )

  test('is recognised behind other errors', () => {
    const error = new TypeError('terminated', {
      cause: new Error('other side closed', { cause: withCode('ECONNRESET') }),
    })
    expect(classifyModelError(error)).toMatchObject({ reason: 'upstream_disconnect', detail: { code: 'ECONNRESET' } })
  })

  test('is recognised by undici’s word alone', () => {
    expect(classifyModelError(new TypeError('terminated')).reason).toBe('upstream_disconnect')
  })

  test('in the middle of an answer is upstream_disconnect, although the status was 200', () => {
    expect(classifyModelError(apiError(200, { cause: withCode('ECONNRESET') }))).toMatchObject({
      reason: 'upstream_disconnect',
      detail: { code: 'ECONNRESET' },
    })
  })

  test('before an answer is upstream_disconnect', () => {
    expect(classifyModelError(apiError(undefined, { cause: withCode('ECONNREFUSED') }))).toMatchObject({
      reason: 'upstream_disconnect',
      detail: { code: 'ECONNREFUSED' },
    })
  })

  test('a stream that ends without a usable finish counts as one', () => {
    expect(classifyModelError(new UnusableFinishError('finish reason "other"')).reason).toBe('upstream_disconnect')
  })
})

test.each([
  ['First chunk timeout of 120000ms exceeded', 'timeout_first_chunk'],
  ['Chunk timeout of 60000ms exceeded', 'timeout_chunk'],
  ['Step timeout of 600000ms exceeded', 'timeout_step'],
  ['Total timeout of 1ms exceeded', 'timeout_total'],
])('STATE-3: the SDK’s "%s" is %s', (message, reason) => {
  expect(classifyModelError(new Error(message)).reason).toBe(reason)
  expect(classifyModelError(new DOMException(message, 'TimeoutError')).reason).toBe(reason)
  // As an abort part words it.
  expect(classifyModelError(new Error(`TimeoutError: ${message}`)).reason).toBe(reason)
})

describe('an error event inside a stream', () => {
  test.each([
    [{ type: 'error', code: 'rate_limit_exceeded', message: 'slow down' }, 'model_rate_limited'],
    [{ type: 'error', code: 'context_length_exceeded', message: 'too long' }, 'context_overflow'],
    [{ type: 'error', code: 'server_error', message: 'oops' }, 'model_unavailable'],
    [{ type: 'response.failed', message: 'oops' }, 'model_unavailable'],
    [{ code: null, message: 'oops' }, 'model_unavailable'],
    [{ type: 'authentication_error', message: 'no', statusCode: 401 }, 'model_auth'],
    [{ type: 'invalid_request_error', message: 'no', statusCode: 400 }, 'model_refused'],
    [{ type: 'overloaded_error', message: 'busy', statusCode: 503 }, 'model_unavailable'],
  ])('%o is %s, also when the SDK has made an error of it', (event, reason) => {
    const expected = {
      reason,
      detail: { message: event.message, ...('statusCode' in event ? { status: event.statusCode } : {}) },
    }
    expect(classifyModelError(event)).toMatchObject(expected)
    const { code, ...rest } = { code: undefined, ...event }
    const error = new StreamProviderError({ ...rest, ...(typeof code === 'string' ? { code } : {}) })
    expect(classifyModelError(error)).toMatchObject(expected)
  })
})

describe('the SDK’s wrappers', () => {
  test('a RetryError is its last error', () => {
    const error = new RetryError({
      message: 'gave up',
      reason: 'maxRetriesExceeded',
      errors: [new Error('x'), apiError(429)],
    })
    expect(classifyModelError(error).reason).toBe('model_rate_limited')
  })

  test('a NoOutputGeneratedError is its cause', () => {
    expect(classifyModelError(new NoOutputGeneratedError({ message: 'none', cause: apiError(401) })).reason).toBe(
      'model_auth',
    )
  })

  test('STATE-4: a stream that ends without any output broke off', () => {
    expect(classifyModelError(new NoOutputGeneratedError()).reason).toBe('upstream_disconnect')
  })

  test('STATE-6: a tool call although tools were off is the step limit', () => {
    const error = new ToolChoiceViolationError({
      toolChoice: { type: 'none' },
      finishReason: 'tool-calls',
      provider: 'mock',
      modelId: 'mock',
      content: [],
    })
    expect(classifyModelError(error).reason).toBe('step_limit')
  })

  test('a missing key is model_auth', () => {
    expect(classifyModelError(new LoadAPIKeyError({ message: 'OPENAI_API_KEY is missing' })).reason).toBe('model_auth')
  })
})

test('anything else is internal, with its name and message for operators', () => {
  expect(classifyModelError(new RangeError('out of range'))).toMatchObject({
    reason: 'internal',
    sentence: REASONS.internal.sentence,
    detail: { name: 'RangeError', message: 'out of range' },
  })
  expect(classifyModelError('just a text').detail.message).toBe('just a text')
  expect(classifyModelError(null).reason).toBe('internal')
})
