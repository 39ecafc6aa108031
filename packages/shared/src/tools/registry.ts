// The tools that bots can have, by name.
import type { Tool, ToolSet } from 'ai'

export interface AiTool {
  /** The name that the model and `toolNames` use. */
  id: string
  /** Tools of a group are shown together. */
  group: string
  /** Whether users may pick the tool for their bots. */
  userSelect: boolean
  tool: Tool
  /**
   * What happens to a call that had started and not finished when its worker was lost. `report` (default): the model is
   * told that the outcome is unknown. `retry`: the tool is idempotent and runs again. `fail`: the job fails.
   */
  onCrash?: 'report' | 'retry' | 'fail'
  /**
   * UTF-16 units of text, or of JSON, that the model reads of one result, 1,000 to 10,000,000; default 50,000. A longer
   * one is shown as head and tail, and kept whole for `readResult`.
   */
  maxResultLength?: number
  /**
   * The tool is there to be asked again with the same input, like one that says whether something is done yet. By default a
   * model that makes the same call step after step with the same result is told so, and the sixth call is not run.
   */
  mayRepeat?: boolean
}

const registered = new Map<string, AiTool>()

/** @throws Error when another tool has that name already */
export function registerAiTool(tool: AiTool): void {
  const present = registered.get(tool.id)
  if (present !== undefined && present !== tool) {
    throw new Error(
      `A tool named "${tool.id}" is registered already (group "${present.group}"). Tool names are unique: choose another.`,
    )
  }
  registered.set(tool.id, tool)
}

export function getAiTools(): AiTool[] {
  return [...registered.values()]
}

export function getAiToolNames(): string[] {
  return [...registered.keys()]
}

/** The tools with these names, in this order, as the AI SDK takes them; names that are not registered are left out. */
export function getSelectedAiTools(names: readonly string[]): ToolSet {
  const selected: [string, Tool][] = []
  for (const name of names) {
    const found = registered.get(name)
    if (found !== undefined) selected.push([name, found.tool])
  }
  return Object.fromEntries(selected)
}

export function findAiTool(name: string): AiTool | undefined {
  return registered.get(name)
}
