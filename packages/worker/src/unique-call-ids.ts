// Some endpoints give several calls of one step the same id. The SDK's loop finds a call by its id, and so does the record:
// a later one of the same step gets an id of its own here, before anybody has seen it.
import type { LanguageModelV4StreamPart } from '@ai-sdk/provider'

type Part = LanguageModelV4StreamPart

/** Answers each part of one step's output, in order, with an id that no earlier call of the step has. */
export function createUniqueCallIds(): (part: Part) => Part {
  const used = new Set<string>()
  /** By the id that the endpoint gave, of the newest call with it. */
  const ids = new Map<string, string>()

  function begin(given: string): string {
    let id = given
    for (let copy = 2; used.has(id); copy += 1) id = `${given}_${copy}`
    used.add(id)
    ids.set(given, id)
    return id
  }

  /** Calls whose input has begun and that have not come themselves. */
  const open = new Set<string>()
  return (part) => {
    switch (part.type) {
      case 'tool-input-start':
        open.add(part.id)
        return { ...part, id: begin(part.id) }
      case 'tool-input-delta':
      case 'tool-input-end':
        return { ...part, id: ids.get(part.id) ?? part.id }
      case 'tool-call': {
        const { toolCallId } = part
        return {
          ...part,
          toolCallId: open.delete(toolCallId) ? (ids.get(toolCallId) ?? toolCallId) : begin(toolCallId),
        }
      }
      case 'tool-result':
        return { ...part, toolCallId: ids.get(part.toolCallId) ?? part.toolCallId }
      // oxlint-disable-next-line typescript/switch-exhaustiveness-check -- no other part has the id of a call
      default:
        return part
    }
  }
}
