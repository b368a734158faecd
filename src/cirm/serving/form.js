(() => {
  const find = id => document.getElementById(id);
  const form = find("form"), answer = find("answer"), fields = new Map();
  let token = "";
  const make = (name, text, props = {}) =>
    Object.assign(document.createElement(name), props, text === null ? {} : {textContent: text});
  const ask = (path, options = {}) => {
    const headers = {...options.headers, ...(token ? {Authorization: "Bearer " + token} : {})};
    return fetch(path, {...options, headers});
  };
  const show = (...parts) => answer.replaceChildren(...parts);
  const complain = text => show(make("p", text, {className: "problem"}));

  const choose = values => {
    const select = make("select", null);
    for (const [value, text] of values) select.append(make("option", text, {value}));
    return select;
  };
  const makeField = (name, about, place) => {
    const kind = [].concat(about.type)[0], example = (about.examples || [])[0];
    const label = make("label", name);
    const known = kind === "string" ? (about.examples || []).slice(0, 5) : [];
    label.append(make("small", known.length ? "known values: " + known.join(", ") : about.description || ""));
    let input;
    if (kind === "boolean") {
      input = choose([["", "unknown"], ["true", "true"], ["false", "false"]]);
      input.value = example === undefined ? "" : String(example);
    } else if (kind === "number") {
      input = make("input", null, {type: "text", inputMode: "decimal"});
      input.value = example === undefined ? "" : String(Number(example.toPrecision(6)));
    } else {
      input = make("input", null, {type: about.format === "date" ? "date" : "text"});
      if ((about.examples || []).length) {
        const list = make("datalist", null, {id: "known-" + place});
        for (const value of about.examples) list.append(make("option", null, {value}));
        label.append(list);
        input.setAttribute("list", list.id);
      }
    }
    input.name = name;
    input.autocomplete = "off";
    label.append(input);
    fields.set(name, {input, kind});
    return label;
  };

  const read = () => Object.fromEntries([...fields].map(([name, {input, kind}]) => {
    const text = input.value.trim();
    if (text === "") return [name, null];
    if (kind === "boolean") return [name, text === "true"];
    const value = Number(text.replace(",", "."));
    return [name, kind === "number" && Number.isFinite(value) ? value : text];
  }));

  const format = value => typeof value === "number" ? String(Number(value.toPrecision(5))) : String(value);
  const showPrediction = (found, notes) => {
    const text = found.prediction === null ? "no prediction: too uncertain" : format(found.prediction);
    const parts = [make("p", text, {className: "value"})];
    const shares = found.probabilities || {};
    for (const [name, share] of Object.entries(shares).sort((a, b) => b[1] - a[1])) {
      const bar = make("div", null, {className: "bar"}), fill = make("i", "");
      fill.style.width = 100 * share + "%";
      bar.append(make("span", name), fill, make("b", (100 * share).toFixed(1) + " %"));
      parts.push(bar);
    }
    for (const [name, value] of Object.entries(found))
      if (!["prediction", "probabilities", "probability"].includes(name) && value !== null)
        parts.push(make("p", name + ": " + (Array.isArray(value) ? value.join(", ") : format(value))));
    for (const note of notes) parts.push(make("p", "Note: " + note, {className: "small"}));
    show(...parts);
  };
  const showProblem = problem => {
    complain(problem.message);
    const field = fields.get(problem.column);
    if (field) {
      field.input.setAttribute("aria-invalid", "true");
      field.input.focus();
    }
  };

  const start = async () => {
    const response = await ask("openapi.json");
    find("token").hidden = response.status !== 401;
    if (response.status === 401) {
      if (token) complain("This token is wrong.");
      return;
    }
    const about = await response.json();
    document.querySelector("h1").textContent = about.info.title;
    document.title = about.info.title;
    const properties = Object.entries(about.components.schemas.Row.properties);
    find("row").replaceChildren(...properties.map(([name, own], place) => makeField(name, own, place)));
    form.hidden = false;
    show();
  };

  const guard = work => work().catch(() => complain("The server does not answer. Is it still running?"));
  find("token").addEventListener("submit", event => {
    event.preventDefault();
    token = event.target.querySelector("input").value;
    guard(start);
  });
  form.addEventListener("submit", event => {
    event.preventDefault();
    for (const {input} of fields.values()) input.removeAttribute("aria-invalid");
    guard(async () => {
      const headers = {"Content-Type": "application/json"};
      const response = await ask("predict", {method: "POST", headers, body: JSON.stringify([read()])});
      const content = await response.json();
      if (response.ok) showPrediction(content.predictions[0], content.notes);
      else showProblem(content.error);
    });
  });
  guard(start);
})();
