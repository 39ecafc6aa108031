// Text is measured in characters (code points) and cut between them, never through an emoji's surrogate pair.

export function characterCount(text: string): number {
  let count = text.length
  for (let at = 0; at < text.length; at += 1) {
    if (isHighSurrogate(text.charCodeAt(at)) && isLowSurrogate(text.charCodeAt(at + 1))) count -= 1
  }
  return count
}

/** The beginning of a text, at most `length` UTF-16 units long. */
export function headOf(text: string, length: number): string {
  if (text.length <= length) return text
  return text.slice(0, isLowSurrogate(text.charCodeAt(length)) ? length - 1 : length)
}

/** The end of a text, at most `length` UTF-16 units long. */
export function tailOf(text: string, length: number): string {
  if (text.length <= length) return text
  const from = text.length - length
  return text.slice(isLowSurrogate(text.charCodeAt(from)) ? from + 1 : from)
}

function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff
}

function isLowSurrogate(unit: number): boolean {
  return unit >= 0xdc00 && unit <= 0xdfff
}
