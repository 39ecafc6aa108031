import { abort } from './workloads/abort.ts'
import { crash } from './workloads/crash.ts'
import { growth } from './workloads/growth.ts'
import { nested } from './workloads/nested.ts'
import { overhead } from './workloads/overhead.ts'
import { streaming } from './workloads/streaming.ts'
import { throughput } from './workloads/throughput.ts'
import { watch } from './workloads/watch.ts'
import type { Workload } from './workload.ts'

/** In the order in which they run. */
export const WORKLOADS: readonly Workload[] = [throughput, streaming, overhead, abort, nested, watch, crash, growth]
