// Viewers of live streams, in a process of their own. Told over IPC which streams to open and how often; says when all are
// open, and when all have ended, how long the stamped tokens were on their way.
import { get, type IncomingMessage } from 'node:http'
import { delaysOf, sharedNow } from './plan.ts'

export interface ViewersOrder {
  key: string
  streams: { url: string; viewers: number }[]
}

export interface ViewersReport {
  /** Of each viewer's first token. */
  firstDelaysMs: number[]
  /** Of all tokens. */
  delaysMs: number[]
}

/** Connections opened at once. */
const LANES = 50

async function watchAll({ key, streams }: ViewersOrder): Promise<void> {
  const report: ViewersReport = { firstDelaysMs: [], delaysMs: [] }
  const ends: Promise<void>[] = []
  const urls = streams.flatMap(({ url, viewers }) => Array.from({ length: viewers }, () => url)).values()
  const lane = async () => {
    for (const url of urls) {
      const viewer = await open(url, key)
      ends.push(follow(viewer, report))
    }
  }
  await Promise.all(Array.from({ length: LANES }, lane))
  process.send?.({ opened: ends.length })
  await Promise.all(ends)
  process.send?.({ report })
}

function open(url: string, key: string): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    get(url, { agent: false, headers: { authorization: `Bearer ${key}` } }, (response) => {
      if (response.statusCode === 200) resolve(response.setEncoding('utf8'))
      else reject(new Error(`a stream was answered with ${response.statusCode}`))
    }).once('error', reject)
  })
}

async function follow(viewer: IncomingMessage, report: ViewersReport): Promise<void> {
  let left = ''
  let seen = 0
  // What a response with an encoding yields is text.
  for await (const bytes of viewer as AsyncIterable<string>) {
    const receivedAt = sharedNow()
    const events = (left + bytes).split('\n\n')
    left = events.pop() ?? ''
    for (const event of events) {
      const delays = delaysOf(deltaOf(event), receivedAt)
      if (seen === 0) report.firstDelaysMs.push(...delays.slice(0, 1))
      seen += delays.length
      report.delaysMs.push(...delays)
    }
  }
}

/** The text that an event adds, if any. */
function deltaOf(event: string): string {
  const data = /^data: (\{.*)$/m.exec(event)?.[1]
  const chunk: { type?: string; delta?: string } = data === undefined ? {} : JSON.parse(data)
  return chunk.type === 'text-delta' ? (chunk.delta ?? '') : ''
}

process.on('message', (order: ViewersOrder) => void watchAll(order))
process.send?.({ ready: true })
