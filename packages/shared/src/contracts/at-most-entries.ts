/** For `refine` of a record: that it has at most so many entries. */
export function atMostEntries(limit: number): [check: (record: object) => boolean, message: string] {
  return [(record) => Object.keys(record).length <= limit, `may have at most ${limit} entries`]
}
