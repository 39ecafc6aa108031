// The codec between values and Postgres's json. It is the one place where text enters storage:
// - U+0000, which Postgres refuses, is written as U+2400 (␀), and half of a surrogate pair as U+FFFD;
// - dates, bytes, bigints, URLs and errors are tagged and come back as what they were;
// - NaN and infinities become null, undefined is left out, as JSON does;
// - what is nested deeper than 500 lists and objects is cut there, as a cycle is: nobody could read it back;
// - everything else, provider metadata above all, passes through untouched.
import type { Prisma } from './generated/client.ts'

const TAG = '$offshoot'
const MAX_DEPTH = 500
/**
 * The number of the format that is written here, kept with every step and, the newest of them, with the job. What is written
 * in a new format is first only read for one release, so that the workers of a rolling deploy can read each other's.
 */
export const STORED_FORMAT = 1
/** The newest format that is read here, besides the one before: a job with a newer one is left to newer workers. */
export const READABLE_FORMAT = 1

/** Text that Postgres takes and that people can read: well-formed, without U+0000. */
export function storedText(text: string): string {
  const wellFormed = text.isWellFormed() ? text : text.toWellFormed()
  return wellFormed.includes('\u0000') ? wellFormed.replaceAll('\u0000', '\u2400') : wellFormed
}

/** A copy whose texts and keys are as storage will have them, so that what is compared, answered and kept is the same. */
export function storable<T>(value: T): T {
  // Encoding changes texts, never the shape of what JSON can hold.
  return decodeStored(encode(value, new Set())) as T
}

export function encodeStored(value: unknown): Prisma.InputJsonValue {
  const encoded = encode(value, new Set())
  // What `encode` makes is JSON.
  return encoded as Prisma.InputJsonValue
}

/** The JSON text of `encodeStored`, for raw SQL. */
export function encodeStoredJson(value: unknown): string {
  return JSON.stringify(encode(value, new Set()) ?? null)
}

export function decodeStored(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(decodeStored)
  if (value === null || typeof value !== 'object') return value
  if (TAG in value) return untag(value)
  return fromEntries(Object.entries(value).map(([key, field]) => [key, decodeStored(field)]))
}

function encode(value: unknown, open: Set<object>): unknown {
  switch (typeof value) {
    case 'string':
      return storedText(value)
    case 'number':
      return Number.isFinite(value) ? value : null
    case 'bigint':
      return { [TAG]: 'bigint', value: value.toString() }
    case 'boolean':
      return value
    case 'object':
      return value === null ? null : encodeObject(value, open)
    case 'undefined':
    case 'function':
    case 'symbol':
      return undefined
  }
}

function encodeObject(value: object, open: Set<object>): unknown {
  if (value instanceof Date) return { [TAG]: 'date', value: Number.isNaN(value.getTime()) ? null : value.toISOString() }
  if (value instanceof URL) return { [TAG]: 'url', value: value.href }
  if (value instanceof ArrayBuffer) return { [TAG]: 'bytes', value: Buffer.from(value).toString('base64') }
  if (ArrayBuffer.isView(value)) {
    return { [TAG]: 'bytes', value: Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64') }
  }
  if (open.has(value)) return '[circular]'
  if (open.size === MAX_DEPTH) return '[too deep]'
  open.add(value)
  try {
    if (value instanceof Error) {
      return {
        [TAG]: 'error',
        name: storedText(value.name),
        message: storedText(value.message),
        cause: encode(value.cause, open) ?? null,
      }
    }
    if (Array.isArray(value)) return value.map((item) => encode(item, open) ?? null)
    if ('toJSON' in value && typeof value.toJSON === 'function') return encode(value.toJSON(), open)
    const entries = Object.entries(value)
      .map(([key, field]): [string, unknown] => [storedText(key), encode(field, open)])
      .filter(([, field]) => field !== undefined)
    const encoded = fromEntries(entries)
    return TAG in value ? { [TAG]: 'object', value: entries } : encoded
  } finally {
    open.delete(value)
  }
}

function untag(tagged: Record<string, unknown>): unknown {
  const { value } = tagged
  switch (tagged[TAG]) {
    case 'bigint':
      return BigInt(value as string)
    case 'date':
      return new Date(value === null ? Number.NaN : (value as string))
    case 'url':
      return new URL(String(value))
    case 'bytes':
      return new Uint8Array(Buffer.from(String(value), 'base64'))
    case 'error': {
      const cause = decodeStored(tagged['cause'])
      const error = new Error(String(tagged['message']), cause === null ? undefined : { cause })
      error.name = String(tagged['name'])
      return error
    }
    case 'object':
      return fromEntries((value as [string, unknown][]).map(([key, field]) => [key, decodeStored(field)]))
    default:
      return tagged
  }
}

/** `__proto__` as a plain field, which `Object.fromEntries` gives and an assignment would not. */
function fromEntries(entries: [string, unknown][]): Record<string, unknown> {
  return Object.fromEntries(entries)
}
