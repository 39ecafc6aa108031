import { existsSync } from 'node:fs'
import type { DeliveryData } from '@offshoot/shared/contracts/delivery'
import { waitUntil } from '@offshoot/testing/wait-until'
import { type Job, Worker } from 'bullmq'
import { chromium, type Browser, type Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ApiUnderTest, openApi } from './api-under-test.ts'

/** Where Debian, Ubuntu and macOS put it; `apt-get install chromium` brings it. */
const CHROMIUM = [
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
].find((path) => existsSync(path))

/** Alice's first deliveries complete, Bob's fail; everything else goes on for ever. */
async function takeDelivery({ data }: Job<DeliveryData>): Promise<unknown> {
  if (data.deliverySeq === 1 && data.owner === 'alice') return 'completed, 4 steps'
  if (data.deliverySeq === 1 && data.owner === 'bob') throw new Error('failed: model_auth')
  return new Promise(() => undefined)
}

describe.skipIf(CHROMIUM === undefined)('in a real browser', () => {
  let api: ApiUnderTest
  let browser: Browser
  let worker: Worker
  beforeAll(async () => {
    api = await openApi({ BULL_BOARD_USER: 'ops', BULL_BOARD_PASSWORD: 'secret', BULL_BOARD_WRITE: 'true' })
    browser = await chromium.launch({
      executablePath: CHROMIUM ?? '',
      args: [
        '--no-sandbox',
        '--headless',
        '--disable-gpu',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync',
        '--no-first-run',
      ],
    })
  })
  beforeAll(() => {
    worker = new Worker('agents-default', takeDelivery, {
      concurrency: 10,
      prefix: api.stage.config.QUEUE_PREFIX,
      connection: { url: process.env['REDIS_URL'] ?? '', maxRetriesPerRequest: null },
    })
  })
  afterAll(async () => {
    await browser.close()
    await worker.close(true)
    await api.close()
  })

  /** A page with a login; `complaints` collects what the browser refuses or cannot load. */
  async function openPage(login?: {
    username: string
    password: string
  }): Promise<{ page: Page; complaints: string[] }> {
    const context = await browser.newContext(login === undefined ? {} : { httpCredentials: login })
    const page = await context.newPage()
    const complaints: string[] = []
    page.on('console', (message) => {
      if (message.type() === 'error') complaints.push(message.text())
    })
    page.on('pageerror', (error) => complaints.push(error.message))
    page.on('requestfailed', (request) => {
      // The board asks for news every few seconds; going to another page breaks that off.
      if (request.failure()?.errorText !== 'net::ERR_ABORTED') complaints.push(request.url())
    })
    return { page, complaints }
  }

  test('SEC-3, SEC-10: Bull Board shows an active, a completed and a failed delivery to the admin, under its policy', async () => {
    const [good, bad, busy] = [await api.spawn('alice'), await api.spawn('bob'), await api.spawn('admin')]
    const { deliveries } = api.stage.runtime
    await waitUntil(async () => (await deliveries.lane('default').getActiveCount()) === 1)
    const { page, complaints } = await openPage({ username: 'ops', password: 'secret' })
    const look = async (status: string, texts: string[]) => {
      await page.goto(`${api.url}/admin/queues/queue/agents-default?status=${status}`)
      for (const text of texts) await page.getByText(text).first().waitFor()
    }
    await look('active', [`forge/planner · job ${busy} · owner admin · depth 1`])
    await look('completed', [`forge/planner · job ${good} · owner alice · depth 1`, 'completed, 4 steps'])
    await look('failed', [`forge/planner · job ${bad} · owner bob · depth 1`, 'failed: model_auth'])
    expect(complaints).toEqual([])
  })

  test('STATE-17: the button Retry brings a failed job back, and says why when it does not', async () => {
    const { deliveries } = api.stage.runtime
    for (const { id } of await deliveries.lane('default').getFailed()) await deliveries.lane('default').remove(id ?? '')
    const jobId = await api.spawn('bob')
    const { page } = await openPage({ username: 'ops', password: 'secret' })
    await waitUntil(async () => (await deliveries.lane('default').getFailedCount()) === 1)
    await page.goto(`${api.url}/admin/queues/queue/agents-default?status=failed`)
    const pressRetry = async () => {
      await page.getByText(`job ${jobId}`).first().waitFor()
      await page.locator('ul[class^=jobActions] button').first().click()
      await page.getByText('Are you sure that you want to retry this job?').waitFor()
      await page.getByRole('button', { name: 'Confirm' }).click()
    }
    await pressRetry()
    await page.getByText('Only a failed or aborted job can be retried; this one is pending.').waitFor()
    await api.finish(jobId, await api.claim(jobId), { state: 'failed', reason: 'model_auth', result: null })
    await pressRetry()
    await page.getByText('No failed jobs in this queue.').waitFor()
    const { body: job } = await api.json(`/v1/agents/${jobId}/events`, { as: 'bob' })
    expect(job['events']).toContainEqual(expect.objectContaining({ kind: 'retried', actorId: 'operator:ops' }))
  })

  test('SEC-3: Bull Board shows nothing to anyone else', async () => {
    for (const login of [
      undefined,
      { username: 'ops', password: 'guess' },
      { username: 'alice', password: api.keys.alice },
    ]) {
      const { page } = await openPage(login)
      const statuses: number[] = []
      page.on('response', (response) => statuses.push(response.status()))
      // Without a login that is taken, Chromium answers with an error page of its own.
      await page.goto(`${api.url}/admin/queues`).catch(() => undefined)
      expect(statuses.length).toBeGreaterThan(0)
      expect(statuses.filter((status) => status !== 401 && status !== 403)).toEqual([])
    }
  })

  test('SEC-10: the documentation works under its policy', async () => {
    const { page, complaints } = await openPage()
    await page.goto(`${api.url}/docs`)
    await page.getByText('Spawn an agent').click()
    await page.getByRole('button', { name: 'Try it out' }).waitFor()
    expect(complaints).toEqual([])
  })
})
