/** What is asked here is computed here: there is no request to repeat on a command line. */

export const asCommand = () => "";
