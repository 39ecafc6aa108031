// One bot that delegates both ways in one run: it waits for what it needs now, and hears of the rest when that is done.
// docs/guide/delegation.md explains it.
import type { Offshoot } from '@offshoot/shared'
import type { SpawnContext } from '@offshoot/shared/spawn-context'

const editor = { botGroup: 'forge', botHandle: 'editor' }

const HOW_TO_DELEGATE = `
You write buyer's guides. The bot forge/researcher finds things out for you; it sees only what you tell it.
Start everything in your first step:
- Which models there are: mode "sync". You need the list to go on.
- What the law says, and what riders complain of: mode "async" with notifyParent: true, one call each.
With the list write the outline, and end your turn. You are called again when the others are done: never ask for them with checkAgent.
Your last message is the whole guide, with all that was found.`

export async function writeGuide(offshoot: Offshoot, caller: SpawnContext, product: string) {
  const outcome = await offshoot.run(caller, {
    bot: editor,
    message: `Write a guide to ${product}.`,
    overrides: { systemPromptAppend: HOW_TO_DELEGATE },
    parkTimeoutMs: 10 * 60_000, // then it ends with what it has, and the others go on
  })
  if (outcome.state !== 'completed') throw new Error(`There is no guide: ${JSON.stringify(outcome)}`)
  return outcome.result
}
