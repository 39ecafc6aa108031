// The one place that understands Prisma's errors.
import { Prisma } from './generated/client.ts'

/** Two writers made the same row: the other one was first. */
export function isUniqueViolation(error: unknown): boolean {
  if (!(error instanceof Prisma.PrismaClientKnownRequestError)) return false
  return error.code === 'P2002' || postgresCode(error) === '23505'
}

/**
 * Trying the same statement again may succeed: the connection broke, the server is starting or stopping, a lock or a
 * connection did not come in time, or a deadlock was resolved against us.
 */
export function isTransientDatabaseError(error: unknown): boolean {
  if (
    error instanceof Prisma.PrismaClientInitializationError ||
    error instanceof Prisma.PrismaClientUnknownRequestError
  )
    return true
  if (!(error instanceof Prisma.PrismaClientKnownRequestError)) return isBrokenConnection(error)
  // P1001 unreachable, P1002 timed out, P1008 operation timed out, P1017 closed, P2024 no connection in time,
  // P2028 transaction expired or could not start, P2034 write conflict or deadlock, P2037 too many connections
  if (['P1001', 'P1002', 'P1008', 'P1017', 'P2024', 'P2028', 'P2034', 'P2037'].includes(error.code)) return true
  // A raw statement fails as P2010, whatever the reason; the driver adapter names it.
  const kind = adapterKind(error)
  if (kind !== undefined && TRANSIENT_ADAPTER_KINDS.has(kind)) return true
  const code = postgresCode(error)
  // 08 connection, 40 rollback, 53 out of resources, 55P03 lock not available, 57 operator intervention
  return code !== undefined && (/^(08|40|53|57)/.test(code) || code === '55P03')
}

const TRANSIENT_ADAPTER_KINDS = new Set([
  'DatabaseNotReachable',
  'ConnectionClosed',
  'SocketTimeout',
  'TooManyConnections',
  'TransactionWriteConflict',
])

function adapterKind(error: InstanceType<typeof Prisma.PrismaClientKnownRequestError>): string | undefined {
  return /"kind":"(\w+)"/.exec(JSON.stringify(error.meta ?? {}))?.[1]
}

function postgresCode(error: InstanceType<typeof Prisma.PrismaClientKnownRequestError>): string | undefined {
  const meta: unknown = error.meta
  const text = JSON.stringify(meta ?? {})
  return /"(?:code|originalCode)":"([0-9A-Z]{5})"/.exec(text)?.[1]
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

function isBrokenConnection(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  if ('code' in error && typeof error.code === 'string') {
    if (BROKEN_CONNECTION_CODES.has(error.code) || /^(08|40|53|57)/.test(error.code) || error.code === '55P03')
      return true
  }
  if (
    /Connection terminated|timeout exceeded when trying to connect|Client has encountered a connection error/.test(
      error.message,
    )
  )
    return true
  return error.cause !== undefined && isBrokenConnection(error.cause)
}
