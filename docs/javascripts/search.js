// A leading dash means "not" to the search: whoever looks for --trust would find nothing.
document.addEventListener("input", (event) => {
  const box = event.target
  if (box instanceof HTMLInputElement && box.name === "query")
    box.value = box.value.replace(/(^|\s)-+(?=\w)/g, "$1")
}, true)
