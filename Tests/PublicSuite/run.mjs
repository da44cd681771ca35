// Runs the cases of a copy of http-tests/cache-tests against a cache, and prints which pass.
//
//   node run.mjs COPY BASE private|shared WAY [--json] [ID...]
//
// A private cache gets the cases for browsers, a shared cache those for proxies and CDNs. The suite's own command always
// selects the latter. Exits with 1 if a required case fails that expected-failures.tsv does not name.
import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { resolve } from 'node:path'

const [copy, base, mode, way, ...rest] = process.argv.slice(2)
const json = rest.includes('--json')
const ids = new Set(rest.filter(argument => argument !== '--json'))
const load = path => import(pathToFileURL(resolve(copy, path)))
const { runTests, getResults } = await load('test-engine/client/runner.mjs')
const { determineTestResult, resultTypes } = await load('test-engine/lib/results.mjs')
const suites = (await load('tests/index.mjs')).default

const selected = ids.size === 0
  ? suites
  : suites.map(suite => ({
    ...suite,
    tests: suite.tests.filter(test => ids.has(test.id)).map(test => ({ ...test, dump: true }))
  }))
// The suite reports what it cannot parse on the console; only the results belong on standard output.
const print = console.log
if (ids.size === 0) console.log = () => {}
// Versions of the suite before July 2026 take the function that fetches.
const isPrivate = mode === 'private'
await (runTests.length < 4 ? runTests(selected, isPrivate, base) : runTests(selected, fetch, isPrivate, base))
const results = getResults()
if (Object.keys(results).length === 0) {
  console.error('cache-tests: no case ran; the suite may have another interface')
  process.exit(2)
}

const expected = new Map(readFileSync(new URL('expected-failures.tsv', import.meta.url), 'utf8')
  .trim().split('\n').slice(1).map(line => line.split('\t'))
  .filter(([modes, ways]) => [mode, 'both'].includes(modes) && [way, 'all'].includes(ways))
  .map(([, , id, reason]) => [id, reason]))
const names = new Map(Object.entries(resultTypes).map(([name, type]) => [type, name]))
const rows = selected.flatMap(suite => suite.tests)
  .filter(test => test.id in results)
  .map(test => ({
    id: test.id,
    kind: test.kind ?? 'required',
    // Each case counts by itself: whether the cases that it depends on pass makes no difference.
    result: names.get(determineTestResult(suites, test.id, results, false)),
    message: results[test.id] === true ? '' : results[test.id].join(': ')
  }))

const passes = row => row.result === 'pass' || row.result === 'yes'
if (json) {
  print(JSON.stringify(rows, null, 1))
} else {
  print('| Kind | Cases | Pass |\n| --- | --- | --- |')
  for (const kind of ['required', 'optimal', 'check']) {
    const ofKind = rows.filter(row => row.kind === kind)
    print(`| ${kind} | ${ofKind.length} | ${ofKind.filter(passes).length} |`)
  }
  print('')
  for (const row of rows.filter(row => !passes(row))) {
    const reason = expected.has(row.id) ? ` Expected: ${expected.get(row.id)}.` : ''
    print(`${row.kind} ${row.id}: ${row.result}. ${row.message}.${reason}`)
  }
}
process.exit(rows.some(row => row.kind === 'required' && !passes(row) && !expected.has(row.id)) ? 1 : 0)
