/**
 * Keeps the files of the site, so that it works without a connection after the first visit. Says also that no other site
 * is let in: then a browser lends memory that threads share, whatever server the files lie on.
 */

const FILES = [];
const KEPT = `albertkit-VERSION ${self.registration.scope}`;
const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

// "no-cache" asks the server whether a file is still the same: a new page with an old model would answer wrongly.
const fresh = FILES.map((name) => new Request(name, { cache: "no-cache" }));
self.oninstall = (event) => event.waitUntil(caches.open(KEPT).then((cache) => cache.addAll(fresh)));

self.onactivate = (event) => event.waitUntil((async () => {
  for (const name of await caches.keys()) {
    // Other sites of this server have caches beside
    const isOurs = name.startsWith("albertkit-") && (await caches.match("./", { cacheName: name }));
    if (isOurs && name !== KEPT) await caches.delete(name);
  }
})());

async function answer(request) {
  const response = (await caches.match(request, { ignoreSearch: true, cacheName: KEPT })) ?? (await fetch(request));
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(ISOLATED)) headers.set(name, value);
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}

self.onfetch = (event) => event.respondWith(answer(event.request));
