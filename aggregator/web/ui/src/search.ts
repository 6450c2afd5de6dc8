// Whether what a user searches for is one address. What everything else means, the server decides.

const mac = /^([0-9a-f]{1,2}[:-]){5}[0-9a-f]{1,2}$/i
const ipv4 = /^\d{1,3}(\.\d{1,3}){3}$/
const ipv6 = /^[0-9a-f]*:[0-9a-f:.]+$/i

/** Reports whether a text is one address, as far as its form goes. */
export const isAddress = (q: string) => ipv4.test(q) || (ipv6.test(q) && !mac.test(q))
