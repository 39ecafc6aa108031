import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { isAlive } from './kill-process.ts'

/**
 * Makes a data folder where there is none and takes it for this process; gives what frees it again. A process that was
 * killed frees it, too.
 * @throws Error when another process has it: two Redis servers would spoil each other's file.
 */
export async function takeDataFolder(folder: string): Promise<() => Promise<void>> {
  await mkdir(folder, { recursive: true })
  const file = path.join(folder, 'in-use-by')
  try {
    await writeFile(file, String(process.pid), { flag: 'wx' })
  } catch (cause) {
    const owner = Number(
      await readFile(file, 'utf8').catch(() => {
        throw cause
      }),
    )
    if (isAlive(owner)) {
      throw new Error(`${folder} is in use by process ${owner}. (If that is another program, delete ${file}.)`, {
        cause,
      })
    }
    await rm(file, { force: true })
    return takeDataFolder(folder)
  }
  return () => rm(file, { force: true })
}
