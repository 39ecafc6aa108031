// The states of a job's context layers.
import { LayerVersionError } from '@offshoot/shared/layers'
import { readLayer, setLayer } from '@offshoot/shared/operations/layer-state'
import type { Runtime } from '@offshoot/shared/runtime'
import { MAX_STATE_BYTES } from '@offshoot/shared/db/layer-states'
import { type Request, Router } from 'express'
import type { z } from 'zod'
import { callerOf } from '../auth.ts'
import { type layerStateSchema, layerWriteSchema, type writtenLayerSchema } from '../contracts.ts'
import { notFound, problem } from '../problem.ts'
import { readBody, readId } from '../read-request.ts'
import { readJob } from './agents.ts'

export function layerRoutes(runtime: Runtime): Router {
  const router = Router()

  router.get('/:jobId/layers/:layerId', async (request, response) => {
    const { jobId, layerId } = await readAddress(runtime, request)
    const found = await readLayer(runtime, callerOf(request), { jobId }, layerId)
    response.json((found ?? { state: null, version: 0 }) satisfies z.infer<typeof layerStateSchema>)
  })

  router.put('/:jobId/layers/:layerId', async (request, response) => {
    const { state, version } = readBody(layerWriteSchema, request)
    const { jobId, layerId } = await readAddress(runtime, request)
    if (Buffer.byteLength(JSON.stringify(state)) > MAX_STATE_BYTES)
      throw problem('invalid_request', `A state may have ${MAX_STATE_BYTES} bytes of JSON.`)
    const write = { layerId, state, ...(version === undefined ? {} : { version }) }
    try {
      const written = await setLayer(runtime, callerOf(request), { jobId }, write)
      if (written === null) throw notFound('layer')
      response.json(written satisfies z.infer<typeof writtenLayerSchema>)
    } catch (error) {
      if (!(error instanceof LayerVersionError)) throw error
      throw problem('layer_conflict', error.message, { extensions: { version: error.version } })
    }
  })

  return router
}

/** The job and the layer that the address names: the job is the caller's, and has the layer. */
async function readAddress(runtime: Runtime, request: Request): Promise<{ jobId: string; layerId: string }> {
  const job = await readJob(runtime, request)
  const layerId = readId(request, 'layerId', 'layer')
  if (!job.layers.includes(layerId)) throw notFound('layer')
  return { jobId: job.id, layerId }
}
