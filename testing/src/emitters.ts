// Finds what can emit an error in this process: on the heap itself, so that nothing is forgotten.
import { EventEmitter } from 'node:events'
import { Session } from 'node:inspector/promises'
import { Cluster, Redis } from 'ioredis'

export interface FoundEmitter {
  /** The name of its class; `PostgresSession` for one of pg's clients that is open. */
  kind: string
  /** How many listen to its error event. With none, such an event ends the process. */
  listeners: number
}

/** ioredis mixes the emitter's methods, and its constructor's name, into its own classes. */
const EMITTERS = [
  { prototype: EventEmitter.prototype },
  { prototype: Redis.prototype, kind: 'Redis' },
  { prototype: Cluster.prototype, kind: 'Cluster' },
]

/** Runs where the emitters are: whatever it uses must stand in it. */
function describeEmitters(this: EventEmitter[], kind?: string): FoundEmitter[] {
  return this.filter((emitter) => Object.hasOwn(emitter, '_events')).map((emitter) => {
    const isOpenSession =
      '_connected' in emitter && emitter._connected === true && '_ending' in emitter && emitter._ending === false
    const name = isOpenSession ? 'PostgresSession' : emitter.constructor.name
    return { kind: kind ?? name, listeners: emitter.listenerCount('error') }
  })
}

/** All emitters that are alive in this process. */
export async function findEmitters(): Promise<FoundEmitter[]> {
  const session = new Session()
  session.connect()
  Reflect.set(globalThis, 'emitters', EMITTERS)
  try {
    const found: FoundEmitter[] = []
    for (const [at, { kind }] of EMITTERS.entries()) {
      const { result: prototype } = await session.post('Runtime.evaluate', {
        expression: `globalThis.emitters[${at}].prototype`,
      })
      const { objects } = await session.post('Runtime.queryObjects', { prototypeObjectId: prototype.objectId ?? '' })
      const { result } = await session.post('Runtime.callFunctionOn', {
        objectId: objects.objectId ?? '',
        functionDeclaration: describeEmitters.toString(),
        arguments: [kind === undefined ? {} : { value: kind }],
        returnByValue: true,
      })
      // The value of `describeEmitters`, which came as JSON.
      found.push(...(result.value as FoundEmitter[]))
    }
    return found
  } finally {
    Reflect.deleteProperty(globalThis, 'emitters')
    session.disconnect()
  }
}
