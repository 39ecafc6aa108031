// What a viewer has been sent of a job's message, so that what it missed can be filled in from the stored message: each
// text once and whole, whatever part of it had come.
import type { UIMessage, UIMessageChunk } from 'ai'

type Part = UIMessage['parts'][number]
type ToolPart = Extract<Part, { toolCallId: string }>

interface SeenText {
  kind: 'text' | 'reasoning'
  id: string
  length: number
  open: boolean
}

interface SeenStep {
  texts: SeenText[]
  files: number
  /** Tool calls whose input was sent: whether their outcome was, too. */
  calls: Map<string, boolean>
  ended: boolean
}

export interface SeenMessage {
  /** Takes down a chunk that the viewer is sent; with `start-step` the step's index, where it is known. */
  note(chunk: UIMessageChunk, step?: number): void
  /** What the viewer lacks of a message of these parts. It counts as sent. */
  missing(parts: UIMessage['parts']): UIMessageChunk[]
}

export function createSeenMessage(): SeenMessage {
  const steps: SeenStep[] = []
  let snapshots = 0

  function note(chunk: UIMessageChunk, step = steps.length): void {
    const current = steps.at(-1)
    if (chunk.type === 'start-step') {
      // What there was of this step is being made again.
      steps.splice(step)
      steps.push({ texts: [], files: 0, calls: new Map(), ended: false })
    } else if ('toolCallId' in chunk) noteCall(steps, chunk)
    else if (current === undefined) return
    else if (chunk.type === 'finish-step') current.ended = true
    else if (chunk.type === 'file') current.files += 1
    else noteText(current, chunk)
  }

  /** The chunks of one part, as far as the step has not seen it. */
  function* lackingOf(part: Part, seen: SeenStep, at: { text: number; reasoning: number; file: number }) {
    if (part.type === 'text' || part.type === 'reasoning') {
      // Empty ones are not always stored: they count on neither side.
      if (part.text === '') return
      const known = seen.texts.filter(({ kind, length, open }) => kind === part.type && (length > 0 || open))[
        at[part.type]++
      ]
      if (known === undefined) yield* textChunks(part.type, `snapshot-${(snapshots += 1)}`, part.text)
      else if (known.open) yield* textChunks(part.type, known.id, part.text.slice(known.length)).slice(1)
    } else if (part.type === 'file') {
      if (at.file++ >= seen.files) yield { type: 'file' as const, url: part.url, mediaType: part.mediaType }
    } else if ('toolCallId' in part) {
      const outcomeSeen = seen.calls.get(part.toolCallId)
      if (outcomeSeen === undefined) yield inputChunk(part)
      if (outcomeSeen !== true) yield* outcomeChunks(part)
    }
  }

  function* lacking(parts: UIMessage['parts']): Generator<UIMessageChunk> {
    for (const [index, ofStep] of splitSteps(parts).entries()) {
      if (steps[index] === undefined) {
        if (steps.at(-1)?.ended === false) yield { type: 'finish-step' }
        yield { type: 'start-step' }
      }
      // The chunk has been taken down by whoever took it from here.
      const seen = steps[index]
      if (seen === undefined) return
      const at = { text: 0, reasoning: 0, file: 0 }
      // A step that has ended for the viewer lacks outcomes of its calls at the most.
      for (const part of ofStep) if (!seen.ended || 'toolCallId' in part) yield* lackingOf(part, seen, at)
      if (!seen.ended) yield { type: 'finish-step' }
    }
  }

  return {
    note,
    missing(parts) {
      const chunks: UIMessageChunk[] = []
      for (const chunk of lacking(parts)) {
        note(chunk)
        chunks.push(chunk)
      }
      return chunks
    },
  }
}

function noteText({ texts }: SeenStep, chunk: UIMessageChunk): void {
  const open = (id: string) => texts.findLast((text) => text.kind === kind && text.id === id && text.open)
  const kind = chunk.type.startsWith('text') ? 'text' : 'reasoning'
  switch (chunk.type) {
    case 'text-start':
    case 'reasoning-start':
      texts.push({ kind, id: chunk.id, length: 0, open: true })
      break
    case 'text-delta':
    case 'reasoning-delta': {
      const text = open(chunk.id)
      if (text !== undefined) text.length += chunk.delta.length
      break
    }
    case 'text-end':
    case 'reasoning-end': {
      const text = open(chunk.id)
      if (text !== undefined) text.open = false
      break
    }
    default:
  }
}

function noteCall(steps: readonly SeenStep[], chunk: Extract<UIMessageChunk, { toolCallId: string }>): void {
  switch (chunk.type) {
    case 'tool-input-available':
    case 'tool-input-error':
      steps.at(-1)?.calls.set(chunk.toolCallId, chunk.type === 'tool-input-error')
      break
    case 'tool-output-available':
    case 'tool-output-error':
      if ('preliminary' in chunk && chunk.preliminary) break
      // It may come after its step: a call that waited for a sub-agent.
      steps.findLast(({ calls }) => calls.has(chunk.toolCallId))?.calls.set(chunk.toolCallId, true)
      break
    default:
  }
}

function splitSteps(parts: UIMessage['parts']): Part[][] {
  const steps: Part[][] = []
  for (const part of parts) {
    if (part.type === 'step-start') steps.push([])
    else steps.at(-1)?.push(part)
  }
  return steps
}

function textChunks(kind: SeenText['kind'], id: string, text: string): UIMessageChunk[] {
  return [
    { type: `${kind}-start`, id },
    ...(text === '' ? [] : [{ type: `${kind}-delta` as const, id, delta: text }]),
    { type: `${kind}-end`, id },
  ]
}

function inputChunk(part: ToolPart): UIMessageChunk {
  const toolName = part.type === 'dynamic-tool' ? part.toolName : part.type.slice('tool-'.length)
  return { type: 'tool-input-available', toolCallId: part.toolCallId, toolName, input: part.input ?? null }
}

function outcomeChunks(part: ToolPart): UIMessageChunk[] {
  const { toolCallId } = part
  if (part.state === 'output-available') return [{ type: 'tool-output-available', toolCallId, output: part.output }]
  return part.state === 'output-error' ? [{ type: 'tool-output-error', toolCallId, errorText: part.errorText }] : []
}
