// The one place that understands the errors of Prisma, its driver adapter and pg.
import { Prisma } from './generated/client.ts'

/** Two writers made the same row: the other one was first. */
export function isUniqueViolation(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  const ofPg = 'code' in error && error.code === '23505'
  return ofPg || prismaCode(error) === 'P2002' || adapterFacts(error).codes.includes('23505')
}

/** A statement was prepared before a migration gave its rows other columns: to be prepared anew. It has done nothing. */
export function isStalePlan(error: unknown): boolean {
  if (!(error instanceof Error) || !('code' in error) || !('routine' in error)) return false
  return error.code === '0A000' && error.routine === 'RevalidateCachedQuery'
}

/** Somebody else held for too long what the statement has to lock. */
export function isLockTimeout(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  return (
    ('code' in error && error.code === LOCK_NOT_AVAILABLE) || adapterFacts(error).codes.includes(LOCK_NOT_AVAILABLE)
  )
}

const LOCK_NOT_AVAILABLE = '55P03'

/**
 * Trying the same statement again may succeed: the connection broke or fell silent, the server is starting or stopping, a
 * lock or a connection did not come in time, or a deadlock was resolved against us.
 */
export function isTransientDatabaseError(error: unknown): boolean {
  if (error instanceof Prisma.PrismaClientInitializationError) return true
  if (error instanceof Prisma.PrismaClientUnknownRequestError) return true
  if (!(error instanceof Error)) return false
  if (TRANSIENT_PRISMA_CODES.has(prismaCode(error) ?? '')) return true
  const { kinds, codes } = adapterFacts(error)
  if (kinds.some((kind) => TRANSIENT_ADAPTER_KINDS.has(kind)) || codes.some(isTransientPostgresCode)) return true
  return isBrokenConnection(error)
}

/**
 * Unreachable (P1001), timed out (P1002, P1008), closed (P1017), no connection in time (P2024), transaction expired or
 * not started (P2028), write conflict or deadlock (P2034), too many connections (P2037).
 */
const TRANSIENT_PRISMA_CODES = new Set(['P1001', 'P1002', 'P1008', 'P1017', 'P2024', 'P2028', 'P2034', 'P2037'])

const TRANSIENT_ADAPTER_KINDS = new Set([
  'DatabaseNotReachable',
  'ConnectionClosed',
  'SocketTimeout',
  'TooManyConnections',
  'TransactionWriteConflict',
])

/** Connection (08), rollback (40), out of resources (53), operator intervention (57), lock not available (55P03). */
function isTransientPostgresCode(code: string): boolean {
  return /^(08|40|53|57)/.test(code) || code === LOCK_NOT_AVAILABLE
}

function prismaCode(error: Error): string | undefined {
  return error instanceof Prisma.PrismaClientKnownRequestError ? error.code : undefined
}

/** What the adapter says of the reason: in the `meta` of Prisma's error, or as the `cause` of an error of its own. */
function adapterFacts(error: Error): { kinds: string[]; codes: string[] } {
  const said = JSON.stringify(['meta' in error ? error.meta : null, error.cause instanceof Error ? null : error.cause])
  return {
    kinds: [...said.matchAll(/"kind":"(\w+)"/g)].map(([, kind = '']) => kind),
    codes: [...said.matchAll(/"(?:code|originalCode)":"([0-9A-Z]{5})"/g)].map(([, code = '']) => code),
  }
}

const BROKEN_CONNECTION_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EHOSTUNREACH',
  'EAI_AGAIN',
])

const BROKEN_CONNECTION =
  /Connection terminated|timeout exceeded when trying to connect|Query read timeout|Client has encountered a connection error/

/** An error of pg itself, or behind another one. */
function isBrokenConnection(error: Error): boolean {
  const code = 'code' in error && typeof error.code === 'string' ? error.code : ''
  if (BROKEN_CONNECTION_CODES.has(code) || isTransientPostgresCode(code) || BROKEN_CONNECTION.test(error.message))
    return true
  return error.cause instanceof Error && isBrokenConnection(error.cause)
}
